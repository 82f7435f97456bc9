package codecs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/plot/plotter"

	"github.com/psidecar/psidecar/cmd/psjob/train"
	"github.com/psidecar/psidecar/test/eval/report"
	"github.com/psidecar/psidecar/test/require"
)

// TestTimeToLoss prints how long the recommender takes at 200 Mbit/s to the
// loss that it ends with without a codec, without one and with: DCT's headline.
// The loss is that of all workers' batches, before they are learned, in the mean
// over as many steps as an epoch has, which is to say over all training samples;
// with a codec there are a quarter more steps to come to it. PSIDECAR_EVAL_MBIT,
// PSIDECAR_EVAL_EPOCHS, PSIDECAR_EVAL_SEEDS, PSIDECAR_EVAL_FIRST (the first seed)
// and PSIDECAR_EVAL_CODECS (with semicolons, beside direct) change that.
func TestTimeToLoss(t *testing.T) {
	require.Measurement(t)
	data := require.Dataset(t, "criteo-raw-7k.csv.xz")
	const epoch = 7200 / (4 * 16)
	mbit, steps := setting("MBIT", 200), epoch*setting("EPOCHS", 3)
	codecs := append([]string{"direct"}, chosen("threshold=0.99", "threshold=0.99 unchanged")...)
	lines := make([]report.Line, len(codecs))
	var table strings.Builder
	table.WriteString("| seed | loss | codec | steps | seconds | against direct | steps/s |\n|:--|--:|:--|--:|--:|--:|--:|\n")
	less := map[string][]float64{}
	first := setting("FIRST", 1)
	for seed := first; seed < first+setting("SEEDS", 3); seed++ {
		var goal, direct float64
		for i, c := range codecs {
			n := steps
			if c != "direct" {
				n += steps / 4
			}
			o := under(c, data, mbit, n, uint64(seed)).Do(t)
			curve := smooth(o.Workers, epoch)
			if seed == first {
				lines[i] = lossByTime(c, curve)
			}
			if c == "direct" {
				goal = curve[len(curve)-1].Loss
			}
			at, ok := reached(curve, goal)
			if !ok {
				t.Errorf("seed %d, %s: the loss is %.4f after %d steps, not yet %.4f", seed, c, curve[len(curve)-1].Loss, n, goal)
				continue
			}
			if c == "direct" {
				direct = at.Seconds
			}
			less[c] = append(less[c], 100*(1-at.Seconds/direct))
			t.Logf("seed %d, %s: %v", seed, c, o)
			fmt.Fprintf(&table, "| %d | %.4f | %s | %d | %.1f | %+.0f%% | %.1f |\n", seed, goal, c, at.Step, at.Seconds, 100*(at.Seconds/direct-1), o.StepsPerSecond())
		}
	}
	table.WriteString("\nLess time to the same loss\n\n| codec | less time % | seeds |\n|:--|--:|--:|\n")
	for _, c := range codecs[1:] {
		mean, deviation := stat.MeanStdDev(less[c], nil)
		fmt.Fprintf(&table, "| %s | %.1f ± %.1f | %d |\n", c, mean, deviation, len(less[c]))
	}
	write(t, "time-to-loss.md", fmt.Sprintf("recommender, 4 hosts, %d Mbit/s, %d steps\n\n%s\nPlot: time-to-loss.png\n", mbit, steps, table.String()))
	draw(t, "time-to-loss.png", report.Panel{Title: fmt.Sprintf("Recommender, 4 hosts at %d Mbit/s", mbit), X: "seconds", Y: "loss, mean over an epoch", Lines: lines, Floor: 0.45})
}

// lossByTime is a curve as a line, thinned to some points.
func lossByTime(name string, curve []train.Mark) report.Line {
	l := report.Line{Name: name}
	for i := 0; i < len(curve); i += 1 + len(curve)/40 {
		l.Points = append(l.Points, plotter.XY{X: curve[i].Seconds, Y: curve[i].Loss})
	}
	return l
}

// write logs markdown, and writes it to the folder that PSIDECAR_EVAL_OUT names, if
// it does.
func write(t *testing.T, name, text string) {
	t.Helper()
	t.Log("\n" + text)
	dir := os.Getenv("PSIDECAR_EVAL_OUT")
	if dir == "" {
		return
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
}

// draw writes a figure to the folder that PSIDECAR_EVAL_OUT names, if it does.
func draw(t *testing.T, name string, panel report.Panel) {
	t.Helper()
	dir := os.Getenv("PSIDECAR_EVAL_OUT")
	if dir == "" {
		return
	}
	f := require.Value(os.Create(filepath.Join(dir, name)))(t)
	defer f.Close()
	require.NoError(t, report.WriteFigure(f, []report.Panel{panel}))
	t.Logf("Plot: %s", f.Name())
}

// smooth returns the mean over all workers' curves, which have a mark each
// step, and over the last steps.
func smooth(workers []train.WorkerReport, over int) []train.Mark {
	var curve []train.Mark
	losses := make([]float64, len(workers[0].Curve))
	sum := 0.0
	for i, m := range workers[0].Curve {
		for _, w := range workers {
			losses[i] += w.Curve[i].Loss / float64(len(workers))
			m.Seconds = max(m.Seconds, w.Curve[i].Seconds)
		}
		if sum += losses[i]; i >= over {
			sum -= losses[i-over]
		}
		if m.Loss = sum / float64(over); i >= over-1 {
			curve = append(curve, m)
		}
	}
	return curve
}

// reached returns the first mark with a loss of at most goal.
func reached(curve []train.Mark, goal float64) (train.Mark, bool) {
	for _, m := range curve {
		if m.Loss <= goal*(1+1e-12) {
			return m, true
		}
	}
	return train.Mark{}, false
}

func TestReached(t *testing.T) {
	worker := func(losses ...float64) (w train.WorkerReport) {
		for i, l := range losses {
			w.Curve = append(w.Curve, train.Mark{Step: i + 1, Seconds: float64(i) / 2, Loss: l})
		}
		return w
	}
	curve := smooth([]train.WorkerReport{worker(9, 5, 3, 1, 1), worker(9, 7, 3, 3, 1)}, 2)
	want := []train.Mark{{Step: 2, Seconds: 0.5, Loss: 7.5}, {Step: 3, Seconds: 1, Loss: 4.5}, {Step: 4, Seconds: 1.5, Loss: 2.5}, {Step: 5, Seconds: 2, Loss: 1.5}}
	if fmt.Sprint(curve) != fmt.Sprint(want) {
		t.Errorf("smoothed: %v, want %v", curve, want)
	}
	for goal, step := range map[float64]int{10: 2, 4.5: 3, 2.6: 4, 1.5: 5, 1.4: 0} {
		if at, _ := reached(curve, goal); at.Step != step {
			t.Errorf("%v is reached at %v, want step %d", goal, at, step)
		}
	}
}
