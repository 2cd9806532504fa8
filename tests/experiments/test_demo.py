from mixdim.experiments.demo import run_demo


def test_the_demo_prints_the_widths_and_draws_fig_6(tmp_path):
    lines = []
    run_demo(tmp_path / "new", echo=lines.append)
    text = "\n".join(lines)
    assert "33,762,577 rows" in text
    base_dims = next(line for line in text.splitlines() if line.startswith("base_dim"))
    assert base_dims.split() == ["base_dim", "2", "28", "128", "578"]
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"fig6.png", "fig6.svg"}
