package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/metrics"
	"slices"
	"time"

	"gonum.org/v1/plot/plotter"

	"github.com/psidecar/psidecar/planner/algorithm"
	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/dataset/synth"
	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/prerun"
	"github.com/psidecar/psidecar/test/figure"
)

// scale measures how fast text is read and what memory that takes, and then what
// an edge costs as graphs grow: the time of TSH-1 (the division of the
// parameters included) and of best among 16 machines.
// It goes to 30 million edges, with --full to 100, with --quick to 3.
func scale(ctx context.Context, e *evaluation) error {
	if err := reading(ctx, e); err != nil {
		return err
	}
	const k = 16
	names := []string{"tsh1", "best"}
	t := table{
		title: fmt.Sprintf("Time an edge, k = %d, %d cores: random graphs with the skew and the topics of a text, 50 draws a sample, 5 parameters a sample",
			k, runtime.GOMAXPROCS(0)),
		head: []string{"million edges", "samples", "parameters", "TSH-1, s", "TSH-1, ns/edge", "best, s", "best, ns/edge"},
	}
	p := figure.Panel{Title: "Time for each edge, k = 16", X: "million edges", Y: "ns an edge", LogX: true, LogY: true}
	for _, name := range names {
		p.Lines = append(p.Lines, figure.Line{Name: display(name), Colour: 1 + slices.IndexFunc(algorithm.All(), func(al algorithm.Algorithm) bool { return al.Name == name })})
	}
	for _, millions := range e.sizes() {
		e.progress("scale: %d million edges", millions)
		g, err := textLike(millions).Build(ctx)
		if err != nil {
			return err
		}
		edges := float64(g.Edges())
		row := []string{fmt.Sprintf("%.1f", edges/1e6), fmt.Sprint(g.Samples()), fmt.Sprint(g.Params())}
		p.Ticks = append(p.Ticks, float64(millions))
		for i, name := range names {
			al, err := algorithm.Find(name)
			if err != nil {
				return err
			}
			_, took, err := prerun.Run(ctx, g, al, partition.Options{K: k, Seed: 1})
			if err != nil { // minutes may have gone into what there is
				return errors.Join(err, t.write(e.out))
			}
			e.progress("  %s: %.1f s", name, took.Seconds())
			each := float64(took.Nanoseconds()) / edges
			row = append(row, fmt.Sprintf("%.2f", took.Seconds()), fmt.Sprintf("%.0f", each))
			p.Lines[i].Points = append(p.Lines[i].Points, plotter.XY{X: edges / 1e6, Y: each})
		}
		t.add(row...)
	}
	if err := t.write(e.out); err != nil {
		return err
	}
	return e.writePlot("scale.png", func(w io.Writer) error { return figure.Write(w, []figure.Panel{p}) })
}

// sizes returns the graphs' sizes in millions of edges.
func (e *evaluation) sizes() []int {
	switch {
	case e.quick:
		return []int{1, 3}
	case e.full:
		return []int{1, 3, 10, 30, 100}
	}
	return []int{1, 3, 10, 30}
}

// textLike describes a graph of nearly that many million edges: a sample that
// draws a frequent parameter twice has one edge less.
func textLike(millions int) graph.Random {
	return graph.Random{
		Samples: 20_000 * millions, Params: 100_000 * millions, Degree: 50,
		Exponent: 1, Topics: 100, TopicShare: 0.7, Seed: 5,
	}
}

// reading measures how fast libsvm text in memory becomes rows, and a graph,
// and the memory that takes; each is the best of three.
func reading(ctx context.Context, e *evaluation) error {
	samples := 200_000
	if e.quick {
		samples = 40_000
	}
	var text bytes.Buffer
	if _, err := synth.WriteLibsvm(&text, synth.Text(synth.Options{Samples: samples, Features: 200_000, Seed: 1})); err != nil {
		return err
	}
	e.progress("reading: %d bytes of text", text.Len())
	var g *graph.Graph
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
			results[i].peak = max(results[i].peak, peak)
		}
	}
	for i, way := range ways {
		r := results[i]
		t.add(way.name, fmt.Sprintf("%.1f", float64(text.Len())/1e6), fmt.Sprint(g.Edges()), fmt.Sprintf("%.0f", float64(text.Len())/1e6/r.seconds),
			fmt.Sprintf("%.0f", float64(r.peak)/1e6), fmt.Sprintf("%.1f", float64(r.peak)/float64(g.Edges())))
	}
	return t.write(e.out)
}

// peakHeap returns by how much the heap, garbage included, grew while work ran,
// looked at five times a millisecond.
func peakHeap(work func() error) (uint64, error) {
	heap := func() uint64 {
		s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	runtime.GC()
	before := heap()
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
