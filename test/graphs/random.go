// Package graphs makes graphs for tests and benchmarks of partitioners: drawn at random, or of a
// file.
package graphs

import (
	"context"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/planner/graph"
)

// A Random describes a graph drawn at random, for benchmarks and evaluation: from DWW21's synthetic
// sets, in which every pair is an edge with the same probability (section 6.1), to one with the
// skew and topics of a text.
type Random struct {
	Samples int
	Params  int     // those that no sample draws do not occur in the graph
	Degree  float64 // mean number of parameters that a sample draws
	// Exponent is that of the power law of the parameters' popularity: 0 makes all alike, about 1
	// is that of words. The degrees of samples are Poisson distributed.
	Exponent float64
	// Topics, if above 1, is the number of topics. Each sample has one, and takes the fraction
	// TopicShare of its parameters from the topic's own ranking.
	Topics     int
	TopicShare float64 // from 0 to 1
	Seed       uint64
}

// Build draws the graph. It is a function of r alone, whatever the number of cores.
func (r Random) Build(ctx context.Context) (*graph.Graph, error) {
	var b graph.Builder
	if err := r.Rows(ctx, func(ids []uint64) error { b.AddRow(ids); return nil }); err != nil {
		return nil, err
	}
	return b.Build(ctx)
}

// Rows calls each with the samples in order, each as its distinct parameters in ascending order.
// ids is valid until each returns. All cores draw, one batch ahead of each, so memory does not grow
// with the number of samples.
func (r Random) Rows(ctx context.Context, each func(ids []uint64) error) error {
	const batch = 1 << 14 // rows that one goroutine draws at a time
	cores := runtime.GOMAXPROCS(0)
	for first := 0; first < r.Samples; first += batch * cores {
		drawn := make([][][]uint64, cores)
		group, ctx := errgroup.WithContext(ctx)
		for i := range cores {
			group.Go(func() error {
				from := first + i*batch
				drawn[i] = r.rows(from, min(from+batch, r.Samples))
				return ctx.Err()
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		for _, rows := range drawn {
			for _, row := range rows {
				if err := each(row); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// rows draws samples from to to-1, each from a random source of its own.
func (r *Random) rows(from, to int) [][]uint64 {
	var rows [][]uint64
	var ids []uint64
	for s := from; s < to; s++ {
		// A source per sample makes the graph independent of which goroutine draws it.
		random := rand.New(rand.NewPCG(r.Seed, uint64(s)))
		topic := uint64(0)
		if r.Topics > 1 {
			topic = 1 + random.Uint64N(uint64(r.Topics))
		}
		start := len(ids)
		for range min(poisson(random, r.Degree), r.Params) {
			ids = append(ids, r.param(random, topic))
		}
		row := ids[start:]
		slices.Sort(row)
		row = slices.Compact(row)
		ids = ids[:start+len(row)]
		rows = append(rows, row)
	}
	return rows
}

// param draws a parameter for a sample of the given topic; topic 0 is none. Parameters are numbered
// by their overall popularity. A topic's ranking is the same list rotated, so what is popular in
// one topic is rare in another.
func (r *Random) param(random *rand.Rand, topic uint64) uint64 {
	m := uint64(r.Params)
	rank := min(uint64(r.rank(random.Float64())), m-1)
	if topic == 0 || random.Float64() >= r.TopicShare {
		return rank
	}
	return (rank + topic*(m/uint64(r.Topics+1))) % m
}

// rank inverts the distribution function of the power law at u.
func (r *Random) rank(u float64) float64 {
	m := float64(r.Params)
	switch r.Exponent {
	case 0:
		return u * m
	// The general formula divides by 1 - exponent.
	case 1:
		return math.Exp(u*math.Log(m+1)) - 1
	}
	a := 1 - r.Exponent
	return math.Pow(1+u*(math.Pow(m+1, a)-1), 1/a) - 1
}

// poisson draws from the Poisson distribution with the given mean, by its normal approximation if
// the mean is large.
func poisson(random *rand.Rand, mean float64) int {
	// The loop below takes time in proportion to the mean.
	if mean > 60 {
		return max(0, int(math.Round(mean+math.Sqrt(mean)*random.NormFloat64())))
	}
	n, p, limit := 0, random.Float64(), math.Exp(-mean)
	for p > limit {
		n++
		p *= random.Float64()
	}
	return n
}
