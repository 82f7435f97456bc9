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

// A variant is rules by a name.
type variant struct {
	name  string
	rules []values.Rule
	// split splits models among machines, and returns what goes between them; nil:
	// they are in one piece.
	split func(models []model.Model) *splits
	// watched is the sparsity at which thresholds of a layer's gradient are noted; 0: none.
	watched float64
}

// measured is what a variant's runs with several seeds gave.
type measured struct {
	variant
	runs []*result
}

// seeds is how many runs there are of each variant.
func (e *evaluation) seeds() int {
	if e.quick {
		return 1
	}
	if e.fiveSeeds {
		return 5
	}
	return 3
}

// steps is how many there are of a subject's run.
func (e *evaluation) steps(s *subject) int {
	switch {
	case !e.quick:
		return s.steps
	case s.quick > 0:
		return s.quick
	}
	return s.steps / 4
}

// measure trains a subject in all variants, with several seeds at a time where
// atOnce says so, and scores the test data after each every steps.
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

// spread returns mean and standard deviation of what of returns for each run.
func (m *measured) spread(of func(*result) float64) (mean, deviation float64) {
	each := make([]float64, len(m.runs))
	for i, r := range m.runs {
		each[i] = of(r)
	}
	return stat.MeanStdDev(each, nil)
}

// against is the difference to another variant in the mean, and its standard
// deviation, where each run is compared with that of the same seed.
func (m *measured) against(other *measured, format string, of func(*result) float64) string {
	differences := make([]float64, len(m.runs))
	for i, r := range m.runs {
		differences[i] = of(r) - of(other.runs[i])
	}
	return cell(format, differences)
}

func (m *measured) cell(format string, of func(*result) float64) string {
	each := make([]float64, len(m.runs))
	for i, r := range m.runs {
		each[i] = of(r)
	}
	return cell(format, each)
}

// cell is mean and standard deviation, the latter where there is one.
func cell(format string, each []float64) string {
	mean, deviation := stat.MeanStdDev(each, nil)
	if len(each) < 2 {
		return fmt.Sprintf(format, mean)
	}
	return fmt.Sprintf(format+" ± "+strings.ReplaceAll(format, "+", ""), mean, deviation)
}

func trainLoss(r *result) float64    { return r.train.MeanLoss() }
func testLoss(r *result) float64     { return r.test.MeanLoss() }
func lastLoss(r *result) float64     { return r.last.MeanLoss() }
func lastAccuracy(r *result) float64 { return 100 * r.last.Accuracy() }
func testAccuracy(r *result) float64 { return 100 * r.test.Accuracy() }

// ratio is how much smaller pushes became.
func (m *measured) ratio() float64 {
	mean, _ := m.spread(func(r *result) float64 { return r.pushed.ratio() })
	return mean
}
