package compare

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// writeMetis writes g in METIS's format: vertices from 1, the samples with
// weight 1, then the parameters with weight 0.
func writeMetis(name string, g *graph.Graph) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	w := bufio.NewWriter(f)
	fmt.Fprintf(w, "%d %d 010 1\n", g.Samples()+g.Params(), g.Edges())
	var line []byte
	write := func(weight int64, neighbours []uint32, first int) {
		line = strconv.AppendInt(line[:0], weight, 10)
		for _, v := range neighbours {
			line = append(line, ' ')
			line = strconv.AppendInt(line, int64(v)+int64(first), 10)
		}
		w.Write(append(line, '\n')) // an error stays with w until Flush
	}
	for s := range g.Samples() {
		write(1, g.ParamsOf(s), g.Samples()+1)
	}
	for p := range g.Params() {
		write(0, g.SamplesOf(p), 1)
	}
	return w.Flush()
}

func runMetis(ctx context.Context, file string, o partition.Options) error {
	c := exec.CommandContext(ctx, "gpmetis", "-objtype=vol", fmt.Sprintf("-seed=%d", o.Seed), file, strconv.Itoa(o.K))
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("gpmetis: %w: %s", err, out)
	}
	return nil
}

// readParts reads the first n lines, a number each.
func readParts(name string, n int) ([]int32, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	parts := make([]int32, 0, n)
	lines := bufio.NewScanner(f)
	for len(parts) < n && lines.Scan() {
		part, err := strconv.ParseInt(lines.Text(), 10, 32)
		if err != nil {
			return nil, err
		}
		parts = append(parts, int32(part))
	}
	if len(parts) < n {
		return nil, fmt.Errorf("%s has %d lines, want %d or more: %w", name, len(parts), n, lines.Err())
	}
	return parts, nil
}
