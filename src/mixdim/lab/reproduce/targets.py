"""What `mixdim reproduce` can make: each figure, table and claim of the paper, with its runs and words.

Says what belongs together; trains nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from matplotlib.figure import Figure

from mixdim.lab.figures import paper as paper_figures
from mixdim.lab.figures import paper_cf as paper_figures_cf
from mixdim.lab.paper import captions, claims
from mixdim.lab.paper.curves import train_seconds
from mixdim.lab.paper.study import Study
from mixdim.lab.paper.study_words import caption_of
from mixdim.lab.reproduce import untrained_targets
from mixdim.lab.reproduce.untrained_targets import Made, Studies
from mixdim.runs.sweeps.records import Record
from mixdim.runs.sweeps.sweep import RunRequest


class Draw(Protocol):
    """A figure of records."""

    def __call__(self, records: Sequence[Record], /, *, title: str, caption: str) -> Figure:
        """Draw them."""


@dataclass(frozen=True)
class Target:
    """One thing to reproduce: its studies, its runs, and what is made of their records."""

    title: str
    paper_claim: str
    studies: tuple[str, ...]
    runs: Callable[[Studies], list[RunRequest]]
    make: Callable[[Studies, Sequence[Record]], Made]


def _measured(
    name: str,
    title: str,
    paper_claim: str,
    study: str,
    runs: Callable[[Study], list[RunRequest]],
    draw: Draw,
    tell: Callable[[Sequence[Record]], str],
) -> Target:
    """A target with one picture, made of the records of one study's runs."""

    def make(studies: Studies, records: Sequence[Record]) -> Made:
        caption = caption_of(studies[study], records)
        return Made({name: draw(records, title=title, caption=caption)}, tell(records), caption)

    return Target(title, paper_claim, (study,), lambda studies: runs(studies[study]), make)


def _untrained(
    title: str, paper_claim: str, studies: tuple[str, ...], make: Callable[[Studies], Made]
) -> Target:
    """A target that needs no runs."""
    return Target(title, paper_claim, studies, lambda _: [], lambda studies, _: make(studies))


def _selected(study: Study) -> list[RunRequest]:
    """Uniform at the focus budget and at the largest; at the former also mixed, and lifted uniform."""
    protocol = study.protocol
    few, many = (protocol.focus_dim,), (max(protocol.uniform_dims),)
    uniform = study.frontier(few, (0.0,)) + study.frontier(many, (0.0,))
    return uniform + study.frontier(few, (protocol.warm,)) + study.lifted(few)


def _with_lifted(study: Study) -> list[RunRequest]:
    return study.frontier() + study.lifted()


def _pooled_and_featured(study: Study) -> list[RunRequest]:
    return study.frontier(study.protocol.few_dims, (0.0, study.protocol.warm)) + study.pooled()


def _at_focus(study: Study) -> list[RunRequest]:
    return study.frontier((study.protocol.focus_dim,))


def _collaborative_filtering(study: str, model: str, letters: str) -> dict[str, Target]:
    """Figs. 3a-c for MF, 3d-f for NCF."""
    loss, popularity, gap = (f"fig3{letter}" for letter in letters)
    return {
        loss: _measured(
            loss,
            f"{model}: loss against parameters",
            "Mixed dimensions substantially outperform uniform ones, especially at low budgets.",
            study,
            Study.frontier,
            paper_figures.loss_against_parameters,
            lambda records: f"{claims.fewer_parameters(records)}\n{captions.winners(records, 'mse')}",
        ),
        popularity: _measured(
            popularity,
            f"{model}: loss on popular and on rare items",
            "Non-zero temperatures are better on popular items, and on par or better on rare ones.",
            study,
            Study.frontier,
            paper_figures_cf.loss_by_popularity,
            captions.by_popularity,
        ),
        gap: _measured(
            gap,
            f"{model}: training and test loss against temperature, at one budget",
            "With temperature, training and test loss of popular items fall; of rare items only "
            "training loss rises. (Budget 2^21 for 330,000 rows, about width 6.)",
            study,
            _at_focus,
            paper_figures_cf.generalisation,
            captions.gaps,
        ),
    }


FIGURES: dict[str, Target] = {
    "fig1": _untrained(
        "The layer as matrices",
        "Each block has a width of its own, lifted by a projection.",
        (),
        untrained_targets.layer,
    ),
    "fig2a": _measured(
        "fig2a",
        "DLRM: learning curves",
        "Temperature 0.3 within the parameters of uniform width 2 learns like uniform width 32.",
        "ctr",
        _selected,
        paper_figures.learning_curves,
        captions.last_losses,
    ),
    "fig2b": _measured(
        "fig2b",
        "DLRM: loss against parameters",
        "Mixed dimensions have lower loss at each budget; the smaller the budget, the higher the best "
        "temperature.",
        "ctr",
        _with_lifted,
        paper_figures.loss_against_parameters,
        lambda records: f"{captions.winners(records, 'log_loss')}\n{claims.lifting(records)}".rstrip(),
    ),
    "fig2c": _measured(
        "fig2c",
        "DLRM: loss against training time",
        "At a given test loss mixed dimensions train more than twice as fast (on a GPU).",
        "ctr",
        Study.frontier,
        paper_figures.loss_against_time,
        claims.faster,
    ),
    **_collaborative_filtering("mf", "MF", "abc"),
    **_collaborative_filtering("ncf", "NCF", "def"),
    "fig4": _untrained(
        "Popularity of rows",
        "Accesses are heavily skewed in both data sets.",
        ("ctr", "mf"),
        untrained_targets.popularity,
    ),
    "fig5": _measured(
        "fig5",
        "MF: number of equipartitions",
        "8 to 16 bands are enough to see the effect of mixed dimensions; more give little.",
        "mf",
        Study.equipartitions,
        paper_figures_cf.equipartitions,
        captions.number_of_bands,
    ),
    "fig6": _untrained(
        "Width of each feature at one budget",
        "Higher temperatures give popular embeddings more dimensions; 0 is uniform.",
        ("ctr",),
        untrained_targets.widths,
    ),
    "fig7": _measured(
        "fig7",
        "DLRM, uniform: Xavier against He fan-out",
        "Xavier is better than He fan-out by a considerable margin.",
        "ctr",
        Study.initializations,
        paper_figures.initializations,
        captions.he_against_xavier,
    ),
    "fig8": _measured(
        "fig8",
        "DLRM: accuracy against parameters",
        "The curves mirror those of the loss; uniform width 32 has about 79 % on Criteo.",
        "ctr",
        Study.frontier,
        paper_figures.accuracy_against_parameters,
        lambda records: (
            f"{captions.winners(records, 'accuracy')}\n"
            f"{claims.fewer_parameters(records, at_equal_accuracy=True)}"
        ),
    ),
    "fig9": _measured(
        "fig9",
        "DLRM: training time against parameters",
        "Training time grows with parameters (on a GPU).",
        "ctr",
        Study.frontier,
        paper_figures.time_against_parameters,
        lambda records: captions.smallest_and_largest(
            records, "Seconds of training", train_seconds, lambda s: f"{s:.1f} s"
        ),
    ),
    "table1": _untrained(
        "Data sets and models",
        "MovieLens: 27M samples, 330K categories, MF and NCF; Criteo Kaggle: 40M, 32M, DLRM.",
        ("ctr", "mf", "ncf"),
        untrained_targets.data_sets,
    ),
    "claim-16x": _measured(
        "claim-16x",
        "16 times fewer parameters at equal loss",
        "Temperatures of 0.3 to 0.4 are on par with uniform embeddings of 16 times the parameters.",
        "ctr",
        _with_lifted,
        paper_figures.loss_against_parameters,
        claims.sixteen_times,
    ),
    "claim-half": _measured(
        "claim-half",
        "Better accuracy with half the parameters",
        "Temperature 0.2 is 0.1 % more accurate than uniform with twice the parameters.",
        "ctr",
        Study.frontier,
        paper_figures.accuracy_against_parameters,
        claims.half_the_parameters,
    ),
    "claim-2x-faster": _measured(
        "claim-2x-faster",
        "Twice as fast to a given loss",
        "At a given test loss mixed dimensions train more than twice as fast (on a GPU).",
        "ctr",
        Study.frontier,
        paper_figures.loss_against_time,
        claims.faster,
    ),
    "claim-feature-blocks": _measured(
        "claim-feature-blocks",
        "Blocks by feature against bands pooled over all features",
        "Ignoring features, with bands of popularity across all of them, costs more than 1 % accuracy.",
        "ctr",
        _pooled_and_featured,
        paper_figures.accuracy_against_parameters,
        claims.feature_blocks,
    ),
}
