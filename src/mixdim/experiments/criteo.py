"""The Criteo Kaggle data set as far as a plan needs it."""

# Distinct values of each categorical feature over the whole training file (45.8 million rows).
CRITEO_KAGGLE_ROWS = {
    f"C{number}": rows
    for number, rows in enumerate(
        [
            1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
            27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
        ],
        start=1,
    )
}  # fmt: skip
