package codecs

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// TestTable prints steps a second, bytes and losses of the recommender at
// 200 Mbit/s (PSIDECAR_EVAL_MBIT) with each codec against none. It takes minutes, and runs only
// where PSIDECAR_EVAL=1 is set. PSIDECAR_EVAL_ROUNDS says how often,
// PSIDECAR_EVAL_CODECS which (with semicolons), PSIDECAR_EVAL_BATCH the samples of
// a worker's step, PSIDECAR_EVAL_BLOCK the values of a dense layer's key.
func TestTable(t *testing.T) {
	if os.Getenv("PSIDECAR_EVAL") != "1" {
		t.Skip("a measurement of minutes; set PSIDECAR_EVAL=1")
	}
	data := require.Dataset(t, "criteo-raw-7k.csv.xz")
	rounds, batch := 1, "16"
	if b := os.Getenv("PSIDECAR_EVAL_BATCH"); b != "" {
		batch = b
	}
	fmt.Sscan(os.Getenv("PSIDECAR_EVAL_ROUNDS"), &rounds)
	mbit, steps := uint64(200), "400"
	fmt.Sscan(os.Getenv("PSIDECAR_EVAL_MBIT"), &mbit)
	if mbit < 100 {
		steps = "200"
	}
	block := "65536" // the dense layers are one key, and one server's link the limit
	if b := os.Getenv("PSIDECAR_EVAL_BLOCK"); b != "" {
		block = b
	}
	codecs := []string{"direct", "none", "compact", "unchanged", "quantize=8", "slim=0.3,0.15", "threshold=0.95", "threshold=0.99", "threshold=0.99 quantize=8"}
	if only := os.Getenv("PSIDECAR_EVAL_CODECS"); only != "" {
		codecs = strings.Split(only, ";")
	}
	var table strings.Builder
	table.WriteString("| codec | steps/s | time against direct | kB a step over the links | pushed values | train loss |\n|:--|--:|--:|--:|--:|--:|\n")
	for range rounds {
		direct := 0.0
		for _, c := range codecs {
			r := Run{Hosts: 4, Rate: mbit * 1e6, Direct: c == "direct", Job: []string{
				"--model", "dlrm", "--data", data, "--steps", steps, "--batch", batch, "--tensor-block", block, "--learning-rate", "0.1"}}
			switch c {
			case "direct", "compact":
			case "none":
				r.Sidecar = []string{"--codec", "none"}
			default:
				for flag := range strings.FieldsSeq(c) {
					r.Sidecar = append(r.Sidecar, "--"+flag)
				}
			}
			o := r.Do(t)
			t.Logf("%s: %v", c, o)
			if r.Direct {
				direct = o.StepsPerSecond()
			}
			w := o.First()
			ratio := "-"
			for _, form := range []string{"threshold", "quantize", "slim-push"} {
				if f := o.Forms[form]; f.Encoded > 0 {
					ratio = fmt.Sprintf("1/%.1f", float64(f.Bytes)/float64(f.Encoded))
				}
			}
			fmt.Fprintf(&table, "| %s | %.1f | %+.0f%% | %.1f | %s | %.4f |\n", c, o.StepsPerSecond(), 100*(direct/o.StepsPerSecond()-1),
				float64(o.Bytes)/float64(w.Steps)/1e3, ratio, *w.Loss)
		}
	}
	t.Logf("recommender, 4 hosts, %d Mbit/s, batches of %s\n\n%s", mbit, batch, table.String())
}
