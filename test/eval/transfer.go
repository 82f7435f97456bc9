package main

import (
	"context"
	"fmt"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/internal/page"
)

// transfers repeats table 3 of Parallax: what a machine sends and receives in a step by
// architecture, by its formulas, for models whose sparsity is measured, beside the messages of
// such jobs on parameter servers.
func transfers(ctx context.Context, e *evaluation) error {
	rec, err := recommender(e, "small", small)
	if err != nil {
		return err
	}
	lr, err := regression(e, "criteo-80k.libsvm.xz", 200, 64, kv.StoreSettings{Rule: "sgd", LearningRate: 30})
	if err != nil {
		return err
	}
	t := table{title: fmt.Sprintf("Parallax Table 3: kB that one of %d machines, each a worker and a server, sends and receives in a step; the last three are of messages on parameter servers", workers),
		head: []string{"model", "values", "alpha", "all by AllReduce", "used ones by AllGatherv", "used ones by servers", "PS-lite's messages", "times the formula's", "by psidecar, compact"}}
	for _, s := range []*subject{lr, rec} {
		run, err := s.session(ctx, 1, nil)
		if err != nil {
			return err
		}
		// Bytes of a step hardly change while a model trains, so a short run suffices, without
		// scores.
		run.steps, run.test = min(e.steps(s), 100), nil
		r, err := run.train(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		f := transfer{values: modelValues(run.models), machines: workers}
		f.alpha = float64(r.values) / float64(workers*run.steps*f.values)
		each := func(bytes int) float64 { return f.machine(float64(bytes) / float64(workers*run.steps)) }
		plain := each(r.pushed.plain + r.pulled.plain)
		t.addRow(s.name, fmt.Sprint(f.values), fmt.Sprintf("%.5f", f.alpha), kB(f.allReduce()), kB(f.allGather()), kB(f.servers()),
			kB(plain), fmt.Sprintf("%.2f", plain/f.servers()), kB(each(r.pushed.encoded+r.pulled.encoded)))
	}
	return t.write(e.out)
}

// kB formats bytes as kB of 1,000 bytes.
func kB(bytes float64) string { return fmt.Sprintf("%.1f", bytes/1e3) }

// transfer has the formulas of Parallax's section 3.1: bytes that one machine sends and
// receives in a step, where variables are spread evenly among machines and each value takes
// four bytes.
type transfer struct {
	values, machines int
	alpha            float64 // share of the values that a worker uses in a step
}

// machine returns what crosses a machine's link if a worker exchanges so many bytes with all
// servers: its own worker's traffic with the others' servers, and as much of its server.
func (t transfer) machine(worker float64) float64 {
	n := float64(t.machines)
	return 2 * worker * (n - 1) / n
}

// costs returns table 3 for all variables.
func (t transfer) costs() page.FormCosts {
	return page.EvenCluster(t.machines, 1).Costs(4*float64(t.values), t.alpha)
}

func (t transfer) servers() float64   { return t.costs()[page.FormServers].Bytes }
func (t transfer) allReduce() float64 { return t.costs()[page.FormAllReduce].Bytes }
func (t transfer) allGather() float64 { return t.costs()[page.FormAllGather].Bytes }

// modelValues returns how many values the samples of any of the models use.
func modelValues(models []model.Model) (sum int) {
	seen := map[uint64]bool{}
	for _, m := range models {
		for _, g := range m.Groups(whole(m)) {
			for i, key := range g.Keys {
				if seen[key] {
					continue
				}
				seen[key] = true
				if g.Lens != nil {
					sum += int(g.Lens[i])
				} else {
					sum += g.Width
				}
			}
		}
	}
	return sum
}
