#!/usr/bin/env python3
"""Draws made-up logs with tools/chart.py and reads the picture back. Usage: chart_test.py path/to/chart.py"""
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from checks import check, finish  # noqa: E402

CHART = sys.argv[1]
SVG = "{http://www.w3.org/2000/svg}"
HEADER = "kind,epoch,step,seconds,loss,train_accuracy,test_accuracy,lr,scale,skipped,images_per_s,peak_bytes"


def chart(*arguments, code=0):
    result = subprocess.run([sys.executable, CHART, *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    check(result.returncode == code, f"{arguments}: exit code {result.returncode}\n{result.stderr}")
    return result


def draw(folder, *arguments):
    chart("-o", folder / "out.svg", *arguments)
    return ElementTree.parse(folder / "out.svg").getroot()


def write_log(path, rate, scale="", skipped=(), steps=40):
    """Two epochs; the loss falls from 2.4 to 0.4 in a straight line."""
    rows, lost = [HEADER], 0
    for step in range(1, steps + 1):
        if step in skipped:
            lost, scale = lost + 1, scale / 2
        rows.append(f"step,{step // 21 + 1},{step},{step / rate},{2.4 - 2 * (step - 1) / (steps - 1)},0.5,,0.1,{scale},{lost if scale else ''},{rate},2e8")
        if step % 20 == 0:
            rows.append(f"epoch,{step // 20},{step},{step / rate},1.0,0.5,{0.2 + 0.01 * step},0.1,{scale},{lost if scale else ''},{rate},2e8")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def panel(root, title):
    return next((g for g in root.iter(SVG + "g") if any(t.text.startswith(title) for t in g.iter(SVG + "text"))), None)


def lines(group):
    """Points of the curves of a panel by their run's label."""
    return {line.find(SVG + "title").text: [tuple(map(float, p.split(","))) for p in line.get("points").split()]
            for line in group.iter(SVG + "polyline")}


def texts(group):
    return [t.text for t in group.iter(SVG + "text")]


def test_curves(folder):
    write_log(folder / "slow.csv", 10)
    write_log(folder / "fast.csv", 40, 65536, skipped=(5, 30))
    root = draw(folder, folder / "slow.csv", f"f<16>&={folder / 'fast.csv'}", "--title", "A < B")
    check("A < B" in texts(root) and "f<16>&" in texts(root) and "slow" in texts(root), "title and legend, escaped")
    loss = lines(panel(root, "Training loss"))
    check(set(loss) == {"slow", "f<16>&"}, f"curves of the loss: {set(loss)}")
    slow = loss["slow"]
    check(len(slow) == 40 and all(a[0] < b[0] and a[1] < b[1] for a, b in zip(slow, slow[1:])), "a falling loss goes down the page")
    middle = [(slow[0][i] + slow[-1][i]) / 2 for i in (0, 1)]
    check(all(abs(slow[19][i] + slow[20][i] - 2 * middle[i]) < 0.3 for i in (0, 1)), f"a straight line is drawn straight: {slow}")
    check({"0.0", "0.5", "2.5"} <= set(texts(panel(root, "Training loss"))), f"round ticks: {texts(panel(root, 'Training loss'))}")
    by_epoch, by_time = lines(panel(root, "Test accuracy by epoch")), lines(panel(root, "Test accuracy by time"))
    check(by_epoch["slow"] == by_epoch["f<16>&"] and len(by_epoch["slow"]) == 2, "the same accuracies by epoch")
    left = 74
    ratios = [(a[0] - left) / (b[0] - left) for a, b in zip(by_time["slow"], by_time["f<16>&"])]
    check(all(abs(r - 4) < 0.1 for r in ratios), f"four times faster: {ratios}")
    crosses = [e for e in panel(root, "Loss scale").iter(SVG + "path") if e.get("class") == "skip"]
    check(len(crosses) == 2, f"{len(crosses)} crosses for 2 skipped steps")
    check("65,536" in texts(panel(root, "Loss scale")) or "131,072" in texts(panel(root, "Loss scale")), "the scale's ticks are powers of two")
    heights = {y for _, y in lines(panel(root, "Loss scale"))["f<16>&"]}
    check(len(heights) == 3, f"a staircase of three steps: {heights}")


def test_bars(folder):
    write_log(folder / "slow.csv", 100)
    write_log(folder / "fast.csv", 400)
    for title, ratio in (("Images per second", 4), ("Peak memory", 1)):
        group = panel(draw(folder, folder / "slow.csv", folder / "fast.csv"), title)
        widths = [float(r.get("width")) for r in group.iter(SVG + "rect")]
        check(len(widths) == 2 and abs(widths[1] / widths[0] - ratio) < 0.01, f"{title}: bars {widths}")
    check("200" in texts(group) and "MB" in texts(group), f"memory in MB: {texts(group)}")


def test_many_runs(folder):
    """More runs than colours: each pair of colour and dashes once, in the legend and in every panel with lines."""
    for i in range(10):
        write_log(folder / f"r{i}.csv", 10 + i, 65536)
    root = draw(folder, *(folder / f"r{i}.csv" for i in range(10)))
    legend = [(e.get("stroke"), e.get("stroke-dasharray")) for e in root.findall(SVG + "line")]
    check(len(set(legend)) == 10, f"the legend: {legend}")
    for title in ("Training loss", "Test accuracy by epoch", "Loss scale"):
        styles = [(e.get("stroke"), e.get("stroke-dasharray")) for e in panel(root, title).iter(SVG + "polyline")]
        check(len(set(styles)) == 10 and (title == "Loss scale" or styles == legend), f"{title}: {styles}")


def test_other_logs(folder):
    """What a run that still goes on, a long one, one that diverges and one without a scaler leave."""
    write_log(folder / "a.csv", 10)
    content = (folder / "a.csv").read_text()
    (folder / "a.csv").write_text(content + "step,3,41,4.1,0.3")
    root = draw(folder, folder / "a.csv")
    check(len(lines(panel(root, "Training loss"))["a"]) == 40, "half a row is left out")
    check(panel(root, "Loss scale") is None, "no panel of the scale without a scaler")
    write_log(folder / "long.csv", 10, steps=5000)
    curve = lines(panel(draw(folder, folder / "long.csv"), "Training loss"))["long"]
    check(100 < len(curve) <= 160, f"a long curve is averaged to {len(curve)} points")
    (folder / "bad.csv").write_text(content + "step,3,41,4.1,nan,0,,0.1,,,10,1\nstep,3,42,4.2,1e30,0,,0.1,,,10,1\n")
    curve = lines(panel(draw(folder, folder / "bad.csv"), "Training loss"))["bad"]
    check(len(curve) == 41 and curve[39][1] - curve[0][1] > 40, "NaN leaves a gap, and a run that diverges does not flatten the rest")
    (folder / "few.csv").write_text("kind,step,loss\nstep,10,2.5\n")
    root = draw(folder, folder / "few.csv")
    check(len(list(root.iter(SVG + "circle"))) == 1 and panel(root, "Test accuracy") is None, "one point, few columns")
    (folder / "odd.csv").write_text("kind,step,loss,scale,skipped\nstep,1,2,8,0\nstep,2,2,-4,1\nstep,,2,4,2\nstep,3,2,4,2\n")
    crosses = [e for e in panel(draw(folder, folder / "odd.csv"), "Loss scale").iter(SVG + "path") if e.get("class") == "skip"]
    check(len(crosses) == 1, f"a scale below 0 and a row without a step are left out: {len(crosses)} crosses")
    # Steps 2 and 3 of a training that was killed and resumed are there twice; the rows have no kind, as CsvWriter writes them.
    (folder / "own.csv").write_text("step,time,loss,test_accuracy,epoch\n1,1,3,,\n2,1,9,,\n3,1,9,,\n2,1,2,,\n3,1,1,,\n3,1,,0.5,1\n")
    root = draw(folder, folder / "own.csv")
    curve = lines(panel(root, "Training loss"))["own"]
    check(len(curve) == 3 and curve[0][1] < curve[1][1] < curve[2][1], f"the later row of a step counts: {curve}")
    check(len(list(panel(root, "Test accuracy by epoch").iter(SVG + "circle"))) == 1, "a row with a test accuracy is of an epoch")
    root = draw(folder, folder / "a.csv", "--panels", "time,rate")
    check([panel(root, t) is not None for t in ("Training loss", "Test accuracy by time", "Images")] == [False, True, True], "--panels")


def test_errors(folder):
    (folder / "empty.csv").write_text("")
    (folder / "other.csv").write_text("a,b\n1,2\n")
    (folder / "wide.csv").write_text("kind,step,loss\nstep,1," + "9" * 140000 + "\n")
    (folder / "bare.csv").write_text("kind,step\nstep,1\n")
    for words, *arguments in (("none.csv: cannot be read: No such file", folder / "none.csv"),
                              ("other.csv: is no log of a training run", folder / "other.csv"),
                              ("empty.csv: is no log of a training run", folder / "empty.csv"),
                              ("wide.csv: is no log of a training run: field larger than", folder / "wide.csv"),
                              ("nothing to draw", folder / "bare.csv")):
        result = chart("-o", folder / "none.svg", *arguments, code=1)
        check(words in result.stderr and result.stderr.startswith("chart: ") and result.stderr.count("\n") == 1, f"{words}: {result.stderr}")
        check(not (folder / "none.svg").exists(), f"{words}: a picture was written")
    write_log(folder / "a.csv", 10)
    check("cannot be written" in chart("-o", folder / "no/out.svg", folder / "a.csv", code=1).stderr, "no folder")
    check("'losses'" in chart("-o", folder / "out.svg", folder / "a.csv", "--panels", "losses", code=2).stderr, "unknown panel")


def main():
    for part in (test_curves, test_bars, test_many_runs, test_other_logs, test_errors):
        with tempfile.TemporaryDirectory() as folder:
            part(pathlib.Path(folder))
    finish()


main()
