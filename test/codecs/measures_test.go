package codecs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// TestMeasures prints what one measure of psidecar after the other adds to a job on
// plain PS-lite, on links of 20, 50, 200 and 1,000 Mbit/s: time to the loss that the
// plain job ends with, as TestTimeToLoss has it, and bytes and processor time of a
// step. PSIDECAR_EVAL_MBIT (one rate instead), PSIDECAR_EVAL_EPOCHS and
// PSIDECAR_EVAL_CODECS (beside direct) change that.
func TestMeasures(t *testing.T) {
	require.Measurement(t)
	data := require.Dataset(t, "criteo-raw-7k.csv.xz")
	const epoch = 7200 / (4 * 16)
	steps := epoch * setting("EPOCHS", 2)
	codecs := append([]string{"direct"}, chosen("none", "compact", "unchanged", "unchanged wire=bf16", "unchanged threshold=0.99", "unchanged threshold=0.99 quantize=8")...)
	var text strings.Builder
	for _, mbit := range rates() {
		fmt.Fprintf(&text, "Measure by measure, recommender, 4 hosts, %d Mbit/s, %d steps of the plain job, one seed\n\n", mbit, steps)
		text.WriteString("| measures | steps to the loss | seconds | times faster | kB a step | times fewer | ms of a processor a step | train loss at the end |\n|:--|--:|--:|--:|--:|--:|--:|--:|\n")
		var plain leg
		for _, c := range codecs {
			n := steps
			if c != "direct" {
				n += steps / 4
			}
			o := under(c, data, mbit, n, 1).Do(t)
			t.Logf("%d Mbit/s, %s: %v", mbit, c, o)
			curve := smooth(o.Workers, epoch)
			if c == "direct" {
				plain.goal = curve[len(curve)-1].Loss
			}
			l := leg{goal: plain.goal, kB: float64(o.Bytes) / float64(n) / 1e3}
			at, ok := reached(curve, plain.goal)
			if l.steps, l.seconds = at.Step, at.Seconds; c == "direct" {
				plain = l
			}
			cpu := 0.0
			for _, role := range []string{"workers", "servers", "sidecars"} {
				cpu += 1e3 * o.CPU[role].Seconds() / float64(n)
			}
			text.WriteString(l.row(c, plain, ok, cpu, o.First().Loss))
		}
		text.WriteString("\n")
		// What there is so far is kept if a later one fails.
		write(t, "measures.md", text.String())
	}
}

// leg is one job of the comparison.
type leg struct {
	goal    float64
	steps   int
	seconds float64
	kB      float64 // over the links in a step
}

// row is the leg's row beside the plain job's; one that did not come to the loss has
// no time.
func (l leg) row(name string, plain leg, reached bool, cpu float64, loss *float64) string {
	steps, seconds, faster, end := "not reached", "-", "-", "-"
	if reached {
		steps, seconds, faster = fmt.Sprint(l.steps), fmt.Sprintf("%.1f", l.seconds), fmt.Sprintf("%.2f", plain.seconds/l.seconds)
	}
	if loss != nil {
		end = fmt.Sprintf("%.4f", *loss)
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %.0f | %.2f | %.0f | %s |\n", name, steps, seconds, faster, l.kB, plain.kB/l.kB, cpu, end)
}

// rates are those that PSIDECAR_EVAL_MBIT names, or the usual ones.
func rates() []int {
	if one := setting("MBIT", 0); one > 0 {
		return []int{one}
	}
	return []int{20, 50, 200, 1000}
}

func TestLegRow(t *testing.T) {
	loss := 0.5
	plain := leg{steps: 100, seconds: 30, kB: 400}
	for _, c := range []struct {
		reached bool
		loss    *float64
		want    string
	}{
		{true, &loss, "| a | 110 | 10.0 | 3.00 | 100 | 4.00 | 7 | 0.5000 |\n"},
		{false, nil, "| a | not reached | - | - | 100 | 4.00 | 7 | - |\n"},
	} {
		if got := (leg{steps: 110, seconds: 10, kB: 100}).row("a", plain, c.reached, 7, c.loss); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
