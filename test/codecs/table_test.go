package codecs

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// recommender is DLRM's own network for Criteo Kaggle's data (Naumov et al.
// 2019), 476,000 values in its dense layers, which are cut into keys that spread
// over all servers. A step has 64 samples, 16 a worker; DLRM has 128, which the
// two cores of a small machine take too long for, where they are all hosts'.
const recommender = "--model dlrm --bottom 512,256,64 --top 512,256 --embedding 16 --batch 16 --tensor-block 16384 --learning-rate 0.1"

// setting is a number that the environment may set otherwise.
func setting(name string, usual int) int {
	fmt.Sscan(os.Getenv("PSIDECAR_EVAL_"+name), &usual)
	return usual
}

// chosen returns the codecs that PSIDECAR_EVAL_CODECS names, or the usual ones.
func chosen(usual ...string) []string {
	if only := os.Getenv("PSIDECAR_EVAL_CODECS"); only != "" {
		return strings.Split(only, ";")
	}
	return usual
}

// under returns the recommender's training on 4 hosts under a codec: direct,
// none, compact, or psidecar's flags without their dashes.
func under(codec, data string, mbit, steps int, seed uint64) Run {
	job := strings.Fields(cmp.Or(os.Getenv("PSIDECAR_EVAL_JOB"), recommender))
	r := Run{Hosts: 4, Rate: uint64(mbit) * 1e6, Direct: codec == "direct",
		Job: append(job, "--data", data, "--steps", fmt.Sprint(steps), "--seed", fmt.Sprint(seed), "--curve-every", "1")}
	switch codec {
	case "direct":
	case "compact", "none":
		r.Sidecar = []string{"--codec", codec}
	default:
		for flag := range strings.FieldsSeq(codec) {
			r.Sidecar = append(r.Sidecar, "--"+flag)
		}
	}
	return r
}

// TestTable prints steps a second, bytes, losses and processor time of the
// recommender at 200 Mbit/s with each codec against none. PSIDECAR_EVAL_MBIT,
// PSIDECAR_EVAL_STEPS, PSIDECAR_EVAL_ROUNDS, PSIDECAR_EVAL_CODECS (with
// semicolons) and PSIDECAR_EVAL_JOB (psjob's flags) change that.
func TestTable(t *testing.T) {
	require.Measurement(t)
	data := require.Dataset(t, "criteo-raw-7k.csv.xz")
	mbit, steps := setting("MBIT", 200), setting("STEPS", 60)
	codecs := chosen("direct", "none", "compact", "unchanged", "quantize=8", "slim=0.3,0.15", "threshold=0.95", "threshold=0.99", "threshold=0.99 quantize=8", "threshold=0.99 unchanged")
	var table strings.Builder
	table.WriteString("| codec | steps/s | time of a step, ms | of direct | kB a step over the links | pushes | pulls | ms of a processor a step: workers | servers | sidecars | train loss |\n|:--|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for range setting("ROUNDS", 1) {
		direct := 0.0
		for _, c := range codecs {
			o := under(c, data, mbit, steps, 1).Do(t)
			t.Logf("%s: %v", c, o)
			if direct == 0 {
				direct = o.StepsPerSecond()
			}
			each := func(sum float64) float64 { return sum / float64(steps) }
			fmt.Fprintf(&table, "| %s | %.1f | %.0f | %.2f | %.0f | %s | %s | %.0f | %.0f | %.0f | %.4f |\n", c, o.StepsPerSecond(), 1e3/o.StepsPerSecond(),
				o.StepsPerSecond()/direct, each(float64(o.Bytes))/1e3, o.ratio("threshold", "quantize", "slim-push"), o.ratio("unchanged", "slim-pull"),
				1e3*each(o.CPU["workers"].Seconds()), 1e3*each(o.CPU["servers"].Seconds()), 1e3*each(o.CPU["sidecars"].Seconds()), *o.First().Loss)
		}
	}
	text := fmt.Sprintf("Steps a second, recommender, 4 hosts, %d Mbit/s, %d steps\n\n%s\n", mbit, steps, table.String())
	write(t, "table.md", text)
}
