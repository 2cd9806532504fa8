"""From ids to vectors: routing, tables, lookups, the two faces of the layer. Knows no models."""
