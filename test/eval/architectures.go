package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/cmd/psjob/model"
)

// Parallax's section 6.1: 8 machines of 6 GPUs, here 6 workers of a core each; and links of so
// many bits a second in each direction.
const (
	hosts       = 8
	hostWorkers = 6
	linkRate    = 1e9
)

// architectures are those of Parallax's table 4, in its order, and what psidecar does. All
// slices by architecture are in this order.
var architectures = []string{"AR", "NaïvePS", "OptPS", "HYB", "psidecar"}

// A job is a model in Parallax's terms. What crosses the link of a machine in a step follows
// from it.
type job struct {
	name          string
	dense, sparse float64   // values
	alpha         float64   // share of the sparse values that a worker uses in a step
	union         float64   // share that the workers of a machine use together
	compute       float64   // seconds of a step; 0: not looked at
	samples       float64   // of a worker's step
	paper         []float64 // throughputs that the paper prints, without psidecar's; nil: none
}

// bytes returns what each of the machines of section 6.1 sends and receives in a step, by
// architecture.
func (j job) bytes() []float64 { return j.bytesOn(hosts) }

// bytesOn returns the bytes that each of m machines sends and receives in a step, by
// architecture, with values of four bytes. A single machine needs no link.
//
// Rings of all workers enter and leave a machine once. OptPS sums the pushes of a machine's
// workers before they leave it (section 5.2), HYB has the dense values go by AllReduce instead,
// and psidecar's shared pulls cross the link once too.
func (j job) bytesOn(m int) []float64 {
	if m == 1 {
		return make([]float64, len(architectures))
	}
	g, n := float64(hostWorkers), float64(m*hostWorkers)
	remote := float64(m-1) / float64(m)
	dense, used, together := 4*j.dense, 4*j.sparse*j.alpha, 4*j.sparse*j.union
	// A ring sends and receives each value twice, once to sum it and once to spread the sum,
	// but for an nth part.
	ring := 4 * dense * (n - 1) / n
	// A machine's workers exchange so much with other machines' servers, and its
	// server as much with other machines' workers.
	servers := func(pulled, pushed float64) float64 { return 2 * remote * (pulled + pushed) }
	return []float64{ring + 2*used*(n-1), servers(g*(dense+used), g*(dense+used)), servers(g*(dense+used), dense+together),
		ring + servers(g*used, together), servers(dense+together, dense+together)}
}

// rates returns samples a second by architecture. A step takes its computation and then what
// the link takes, half of the bytes in each direction; the two are not overlapped.
func (j job) rates() (all []float64) {
	for _, bytes := range j.bytes() {
		all = append(all, hosts*hostWorkers*max(j.samples, 1)/(j.compute+bytes/2*8/linkRate))
	}
	return all
}

// published4 returns the models of table 4, by the sizes and the model's alpha of table 1:
// alpha of the sparse values is what is left when dense ones count as 1. What a machine's
// workers use together is not in the paper; it is taken as if each used others by chance, which
// is the most that is likely.
func published4() []job {
	var all []job
	for _, p := range []struct {
		name                 string
		dense, sparse, alpha float64
		paper                []float64
	}{{"LM", 9.4e6, 813.3e6, 0.02, []float64{45.5, 98.9, 250, 274}}, {"NMT", 94.1e6, 74.9e6, 0.65, []float64{68.3, 102, 116, 204}}} {
		j := job{name: p.name, dense: p.dense, sparse: p.sparse, paper: p.paper}
		j.alpha = (p.alpha*(p.dense+p.sparse) - p.dense) / p.sparse
		j.union = 1 - math.Pow(1-j.alpha, hostWorkers)
		all = append(all, j)
	}
	return all
}

// parallaxTable4 repeats table 4 of Parallax by calculation: for its models from their sizes,
// and for psjob's with measured shares and times. [scaling] adds its other tables and figures.
func parallaxTable4(ctx context.Context, e *evaluation) error {
	jobs := published4()
	rec, err := splitRecommender(e)
	if err != nil {
		return err
	}
	lr, err := regression(e, "criteo-80k.libsvm.xz", 200, 64, kv.StoreSettings{Rule: "sgd", LearningRate: 30})
	if err != nil {
		return err
	}
	for _, s := range []*subject{translation(), rec, lr} {
		j, err := s.job(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		jobs = append(jobs, j)
	}
	ratios := table{title: fmt.Sprintf("Parallax Table 4: throughput of NaïvePS's, %d machines of %d workers; by calculation from what crosses a machine's link, and for psjob's models from the time that a step computes and links of %g Gbit/s", hosts, hostWorkers, linkRate/1e9),
		head: append([]string{"model"}, architectures...)}
	sizes := table{title: "Parallax Table 4: what it is calculated from; MB a machine sends and receives in a step",
		head: append([]string{"model", "dense values", "sparse values", "alpha", "a machine's workers together", "ms computing"}, architectures...)}
	against := func(name string, of []float64) {
		row := []string{name}
		for i := range architectures {
			if i >= len(of) {
				row = append(row, "-")
				continue
			}
			row = append(row, fmt.Sprintf("%.2f", of[i]/of[1]))
		}
		ratios.addRow(row...)
	}
	for _, j := range jobs {
		if j.paper != nil {
			against(j.name+", the paper's measurement", j.paper)
			ours, row := j.rates(), []string{j.name + ", ours by the paper's"}
			against(j.name+", its bytes alone", ours)
			for i, rate := range j.paper {
				row = append(row, fmt.Sprintf("%.2f", ours[i]/ours[1]/(rate/j.paper[1])))
			}
			// The last column is psidecar, which the paper does not have.
			ratios.addRow(append(row, "-")...)
		} else {
			against(j.name+", ours", j.rates())
		}
		row := []string{j.name, fmt.Sprintf("%.0f", j.dense), fmt.Sprintf("%.0f", j.sparse), fmt.Sprintf("%.4f", j.alpha), fmt.Sprintf("%.4f", j.union), fmt.Sprintf("%.1f", 1e3*j.compute)}
		for _, bytes := range j.bytes() {
			row = append(row, fmt.Sprintf("%.2f", bytes/1e6))
		}
		sizes.addRow(row...)
	}
	if err := ratios.write(e.out); err != nil {
		return err
	}
	if err := sizes.write(e.out); err != nil {
		return err
	}
	return scaling(e)
}

// job measures a subject: which share of its sparse values batches of one worker use, and those
// of a machine's workers together, and how long a worker computes. Times depend on the machine
// that this runs on; nothing else should run there.
func (s *subject) job(ctx context.Context) (job, error) {
	const tries = 4
	// All of the training data: which keys a batch uses depends on what there is to draw from.
	m, err := s.load(ctx, model.Share{Index: 0, Of: 1}, false, 1)
	if err != nil {
		return job{}, err
	}
	j := job{name: s.name, samples: float64(s.batch)}
	for _, g := range m.Groups(whole(m)) {
		if g.Lens != nil {
			j.dense += float64(g.Values())
		} else {
			j.sparse += float64(g.Values())
		}
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range tries {
		together := map[uint64]bool{}
		for range hostWorkers {
			batch := make([]int32, s.batch)
			for i := range batch {
				batch[i] = int32(rng.IntN(m.Samples()))
			}
			for _, g := range m.Groups(batch) {
				if g.Lens != nil {
					continue
				}
				j.alpha += float64(g.Values()) / j.sparse / (tries * hostWorkers)
				for _, key := range g.Keys {
					if !together[key] {
						together[key] = true
						j.union += float64(g.Width) / j.sparse / tries
					}
				}
			}
			took := stepTime(m, batch)
			if j.compute == 0 || took < j.compute { // the least is least disturbed
				j.compute = took
			}
		}
	}
	return j, nil
}

// stepTime returns how many seconds the gradient of a batch takes, in one thread.
func stepTime(m model.Model, batch []int32) float64 {
	var params, grads [][]float32
	for _, g := range m.Groups(batch) {
		params, grads = append(params, make([]float32, g.Values())), append(grads, make([]float32, g.Values()))
	}
	began := time.Now()
	m.Gradient(batch, params, grads, &model.Tally{})
	return time.Since(began).Seconds()
}
