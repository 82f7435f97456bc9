package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/metrics"
	"slices"
	"time"

	"gonum.org/v1/plot/plotter"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/prerun"
	"github.com/psidecar/psidecar/test/eval/report"
	"github.com/psidecar/psidecar/test/graphs"
)

// scale measures how fast text is read and what memory that takes, and then what an edge costs
// as graphs grow: the time of TSH-1 (the division of the parameters included) and of best among 16
// machines. It goes to 30 million edges, with --full to 100, with --quick to
// a third of a million. Its times are of this machine, and want one that does nothing else.
func scale(ctx context.Context, e *evaluation) error {
	if err := reading(ctx, e); err != nil {
		return err
	}
	const k = 16
	ways := []scaled{{"TSH-1", byAlgorithm("tsh1", k)}, {"best", byAlgorithm("best", k)}}
	t := table{
		title: fmt.Sprintf("Time an edge, k = %d, %d cores: random graphs with the skew and the topics of a text, 50 draws a sample, 5 parameters a sample",
			k, runtime.GOMAXPROCS(0)),
		head: []string{"million edges", "samples", "parameters"},
	}
	p := report.Panel{Title: "Time for each edge, k = 16", X: "million edges", Y: "ns an edge", LogX: true, LogY: true}
	for _, way := range ways {
		t.head = append(t.head, way.name+", s", way.name+", ns/edge", way.name+", max")
		p.Lines = append(p.Lines, report.Line{Name: way.name, Colour: colourOf(way.name)})
	}
	for _, millions := range e.sizes() {
		e.progress("scale: %g million edges", millions)
		g, err := textLike(millions).Build(ctx)
		if err != nil {
			return err
		}
		edges := float64(g.Edges())
		row := []string{fmt.Sprintf("%.1f", edges/1e6), fmt.Sprint(g.Samples()), fmt.Sprint(g.Params())}
		p.Ticks = append(p.Ticks, millions)
		for i, way := range ways {
			most, took, err := way.run(ctx, g)
			if err != nil { // minutes may have gone into what there is
				return errors.Join(err, t.write(e.out))
			}
			e.progress("  %s: %.1f s, max %d", way.name, took.Seconds(), most)
			each := float64(took.Nanoseconds()) / edges
			row = append(row, fmt.Sprintf("%.2f", took.Seconds()), fmt.Sprintf("%.0f", each), fmt.Sprint(most))
			p.Lines[i].Points = append(p.Lines[i].Points, plotter.XY{X: edges / 1e6, Y: each})
		}
		t.addRow(row...)
	}
	if err := t.write(e.out); err != nil {
		return err
	}
	return e.writePanels("scale.png", []report.Panel{p})
}

// colourOf returns the colour that an algorithm has in all plots, and one more for what is no
// algorithm.
func colourOf(name string) int {
	all := prerun.AllAlgorithms()
	at := slices.IndexFunc(all, func(al prerun.Algorithm) bool { return display(al.Name) == name })
	if at < 0 {
		at = len(all)
	}
	return 1 + at
}

// A scaled is a way to partition a graph. run returns the busiest machine's traffic and the
// time taken.
type scaled struct {
	name string
	run  func(context.Context, *graph.Graph) (most int64, took time.Duration, err error)
}

// byAlgorithm partitions by an algorithm in memory.
func byAlgorithm(name string, k int) func(context.Context, *graph.Graph) (int64, time.Duration, error) {
	return func(ctx context.Context, g *graph.Graph) (int64, time.Duration, error) {
		al, err := prerun.FindAlgorithm(name)
		if err != nil {
			return 0, 0, err
		}
		a, cost, err := prerun.Run(ctx, g, al, partition.Options{K: k, Seed: 1})
		if err != nil {
			return 0, 0, err
		}
		return partition.Measure(g, a, k).Max, cost.Took(), nil
	}
}

// sizes returns the graphs' sizes in millions of edges.
func (e *evaluation) sizes() []float64 {
	switch {
	case e.quick:
		return []float64{0.1, 0.3}
	case e.full:
		return []float64{1, 3, 10, 30, 100}
	}
	return []float64{1, 3, 10, 30}
}

// textLike describes a graph with the skew of a text and nearly that many million edges: a
// sample that draws a frequent parameter twice has one edge less.
func textLike(millions float64) graphs.Random {
	return graphs.Random{
		Samples: int(20_000 * millions), Params: int(100_000 * millions), Degree: 50,
		Exponent: 1, Topics: 100, TopicShare: 0.7, Seed: 5,
	}
}

// reading measures how fast libsvm text in memory becomes rows, and a graph, and the memory
// that takes. Times are the best of three and memory the most of three.
func reading(ctx context.Context, e *evaluation) error {
	samples := 200_000
	if e.quick {
		samples = 40_000
	}
	var text bytes.Buffer
	if _, err := dataset.WriteLibsvm(&text, dataset.SyntheticText(dataset.TextOptions{Samples: samples, Features: 200_000, Seed: 1})); err != nil {
		return err
	}
	e.progress("reading: %d bytes of text", text.Len())
	var g *graph.Graph
	// The first one parses only; the second builds a graph on top of that, so the difference is
	// the cost of the graph.
	ways := []struct {
		name string
		read func() error
	}{
		{"rows", func() error {
			return dataset.Read(ctx, bytes.NewReader(text.Bytes()), "text", dataset.Options{}, func(*dataset.Rows) error { return nil })
		}},
		{"graph", func() error {
			var b graph.Builder
			if err := dataset.Read(ctx, bytes.NewReader(text.Bytes()), "text", dataset.Options{}, b.Add); err != nil {
				return err
			}
			var err error
			g, err = b.Build(ctx)
			return err
		}},
	}
	t := table{title: "Reading libsvm text from memory", head: []string{"text to", "MB", "edges", "MB/s", "peak MB", "peak B/edge"}}
	type result struct {
		seconds float64
		peak    uint64
	}
	results := make([]result, len(ways))
	for i, way := range ways {
		for try := range 3 {
			// Freed before the next try, so that its memory is not part of that one's.
			g = nil
			began := time.Now()
			peak, err := peakHeap(way.read)
			if err != nil {
				return err
			}
			seconds := time.Since(began).Seconds()
			if try == 0 || seconds < results[i].seconds {
				results[i].seconds = seconds
			}
			// The collector may run at a lucky moment, so the largest peak is the honest one.
			results[i].peak = max(results[i].peak, peak)
		}
	}
	for i, way := range ways {
		r := results[i]
		t.addRow(way.name, fmt.Sprintf("%.1f", float64(text.Len())/1e6), fmt.Sprint(g.Edges()), fmt.Sprintf("%.0f", float64(text.Len())/1e6/r.seconds),
			fmt.Sprintf("%.0f", float64(r.peak)/1e6), fmt.Sprintf("%.1f", float64(r.peak)/float64(g.Edges())))
	}
	return t.write(e.out)
}

// peakHeap returns by how many bytes the heap, garbage included, grew while work ran, sampled
// five times a millisecond.
func peakHeap(work func() error) (uint64, error) {
	heap := func() uint64 {
		s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	runtime.GC()
	before := heap()
	// Sampling needs a goroutine of its own, as the work must not be changed by it.
	stop, result := make(chan struct{}), make(chan uint64)
	go func() {
		peak := before
		ticker := time.NewTicker(200 * time.Microsecond)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				result <- max(peak, heap())
				return
			case <-ticker.C:
				peak = max(peak, heap())
			}
		}
	}()
	err := work()
	close(stop)
	return <-result - before, err
}
