package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"gonum.org/v1/gonum/stat"

	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/proxy/codec/values"
)

// A variant is one way to train a subject: rules for its values, and perhaps a split. The name
// is its row in tables.
type variant struct {
	name  string
	rules []values.Rule
	// split splits models among machines, and returns what goes between them; nil:
	// they are in one piece.
	split func(models []model.Model) *splits
	// watched is the sparsity at which thresholds of a layer's gradient are noted; 0: none.
	watched float64
}

// measured is a variant with its runs, one for each seed.
type measured struct {
	variant
	runs []*result
}

// seeds returns how many runs there are of each variant.
func (e *evaluation) seeds() int {
	if e.quick {
		return 1
	}
	if e.fiveSeeds {
		return 5
	}
	return 3
}

// steps returns how many steps a run of a subject has.
func (e *evaluation) steps(s *subject) int {
	switch {
	case !e.quick:
		return s.steps
	case s.quick > 0:
		return s.quick
	}
	return s.steps / 4
}

// measure trains a subject in all variants, with each seed, and scores the test data after each
// every steps (0: at the end only). Up to atOnce goroutines run at a time, each with models of
// its own. The result is in the order of the variants and does not depend on atOnce, except for
// times.
func (s *subject) measure(ctx context.Context, e *evaluation, every, atOnce int, variants []variant) ([]measured, error) {
	all := make([]measured, len(variants))
	for i, v := range variants {
		all[i] = measured{v, make([]*result, e.seeds())}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for seed := range e.seeds() {
		// Each seed's variants in two parts, so that no processor is idle when
		// there are two processors and three seeds.
		for half := range slices.Chunk(all, (len(all)+1)/2) {
			group.Go(func() error {
				run, err := s.session(ctx, uint64(seed+1), nil)
				if err != nil {
					return err
				}
				run.every, run.steps = every, e.steps(s)
				for _, m := range half {
					// Before the run: the splits of the variant before are in the models still.
					cut := m.divide(append([]model.Model{run.test}, run.models...))
					run.watch = nil
					if m.watched > 0 {
						run.watch = &gradientWatch{sparsity: m.watched}
					}
					if m.runs[seed], err = run.with(ctx, m.rules); err != nil {
						return fmt.Errorf("%s, %s: %w", s.name, m.name, err)
					}
					r := m.runs[seed]
					r.splits = cut
					if run.watch != nil {
						r.taus = run.watch.taus
					}
					e.progress("%s, %s, seed %d: train loss %.4f, test loss %.4f, once all is sent %.4f, accuracy %.4f, pushes 1/%.1f, pulls 1/%.2f", s.name, m.name, seed+1,
						r.train.MeanLoss(), r.test.MeanLoss(), r.last.MeanLoss(), r.last.Accuracy(), r.pushed.ratio(), r.pulled.ratio())
				}
				return nil
			})
		}
	}
	return all, group.Wait()
}

// spread returns mean and standard deviation over the runs of what of returns.
func (m *measured) spread(of func(*result) float64) (mean, deviation float64) {
	each := make([]float64, len(m.runs))
	for i, r := range m.runs {
		each[i] = of(r)
	}
	return stat.MeanStdDev(each, nil)
}

// against returns a cell with the mean difference to another variant and its standard
// deviation, where each run is compared with that of the same seed. Initial values and order of
// samples are the same then, so that the difference is the codec's.
func (m *measured) against(other *measured, format string, of func(*result) float64) string {
	differences := make([]float64, len(m.runs))
	for i, r := range m.runs {
		differences[i] = of(r) - of(other.runs[i])
	}
	return cell(format, differences)
}

// cell returns a cell with mean and standard deviation over the runs.
func (m *measured) cell(format string, of func(*result) float64) string {
	each := make([]float64, len(m.runs))
	for i, r := range m.runs {
		each[i] = of(r)
	}
	return cell(format, each)
}

// cell formats mean and standard deviation; the latter needs two values or more.
func cell(format string, each []float64) string {
	mean, deviation := stat.MeanStdDev(each, nil)
	if len(each) < 2 {
		return fmt.Sprintf(format, mean)
	}
	return fmt.Sprintf(format+" ± "+strings.ReplaceAll(format, "+", ""), mean, deviation)
}

// The figures of a run that tables are made of. The train and test figures are by a model as
// workers see it, the last ones by the servers' model once all that waited was sent.
func trainLoss(r *result) float64    { return r.train.MeanLoss() }
func testLoss(r *result) float64     { return r.test.MeanLoss() }
func lastLoss(r *result) float64     { return r.last.MeanLoss() }
func lastAccuracy(r *result) float64 { return 100 * r.last.Accuracy() }
func testAccuracy(r *result) float64 { return 100 * r.test.Accuracy() }

// ratio returns by how much pushes became smaller, in the mean.
func (m *measured) ratio() float64 {
	mean, _ := m.spread(func(r *result) float64 { return r.pushed.ratio() })
	return mean
}
