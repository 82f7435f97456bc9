package page_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/psidecar/psidecar/internal/page"
)

// The counts of keys that steps pull and push alike are within the error that is
// told of them 19 times in 20, where the keys of one step in four are looked at, and
// where they are at first and more are later, those at first stand for more than they
// are of all.
func TestErrorOfUses(t *testing.T) {
	for name, oneInAt := range map[string]func(step int) int{
		"one in four":                            func(int) int { return 4 },
		"four in ten of one in four, then all":   func(step int) int { return 1 + 3*b2i(step < 1600) },
		"few of one in sixteen, then one in two": func(step int) int { return 2 + 14*b2i(step < 640) },
	} {
		t.Run(name, func(t *testing.T) { checkErrorOfUses(t, oneInAt) })
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func checkErrorOfUses(t *testing.T, oneInAt func(step int) int) {
	t.Helper()
	const keys, steps = 2000, 4000
	r := rand.New(rand.NewPCG(1, 2))
	weight := make([]float64, steps) // 0: not looked at
	s := page.JobSampling{Requests: 2 * steps}
	for from := 0; from < steps; { // exactly one of so many
		oneIn := oneInAt(from)
		weight[from+r.IntN(oneIn)] = float64(oneIn)
		s.Sampled, s.Estimated, s.Spread = s.Sampled+2, s.Estimated+2*uint64(oneIn), s.Spread+2*uint64(oneIn*(oneIn-1))
		from += oneIn
	}
	within, alone := 0, 0
	for range keys {
		truth, count := 0.0, 0.0
		for step := range steps {
			if r.Float64() < 0.05 {
				truth += 2
				count += 2 * weight[step]
			}
		}
		off := math.Abs(count - truth)
		if off <= s.UsesError(count/2, count/2) {
			within++
		}
		if off <= s.CountError(count) {
			alone++
		}
	}
	if share := float64(within) / keys; share < 0.93 || share > 0.98 {
		t.Errorf("%.1f%% of the counts are within the error, want 95%%", 100*share)
	}
	if share := float64(alone) / keys; share > 0.9 {
		t.Errorf("%.1f%% of the counts would be within the error of uses that come one by one: this test does not show the difference", 100*share)
	}
	if one, other := s.UsesError(300, 0), s.CountError(300); one != other {
		t.Errorf("the error of 300 pulls is %v, of 300 uses %v", one, other)
	}
	if all := (&page.JobSampling{Requests: 10, Sampled: 10, Estimated: 10}).UsesError(5, 5); all != 0 {
		t.Errorf("the error where all was looked at is %v", all)
	}
}

// Where no request stands for some at the beginning, it is told how many uses these may
// have had, not how many they have had on average.
func TestErrorOfMissed(t *testing.T) {
	const keys, steps, missed = 2000, 1000, 20
	r := rand.New(rand.NewPCG(3, 4))
	s := page.JobSampling{Requests: 2 * steps, Sampled: 2 * (steps - missed), Estimated: 2 * (steps - missed)}
	within := 0
	for range keys {
		all, count := 0.0, 0.0
		for step := range steps {
			if r.Float64() < 0.05 {
				all += 2
				if step >= missed {
					count += 2
				}
			}
		}
		if all-count <= s.UsesError(count/2, count/2) {
			within++
		}
	}
	if share := float64(within) / keys; share < 0.95 {
		t.Errorf("%.1f%% of the counts are within the error, want 95%%", 100*share)
	}
}

// Where those that were looked at stand for three fifths of the requests that there
// were, counts are as much too low, and it is said by how much.
func TestErrorOfScaling(t *testing.T) {
	const truth = 100_000
	s := page.JobSampling{Requests: 5000, Sampled: 3000, Estimated: 3000}
	if off, told := truth*2/5.0, s.CountError(truth*3/5.0); off > told || told > 1.1*off {
		t.Errorf("a count is %v too low, told is %v", off, told)
	}
	s.Estimated = 10_000
	if off, told := float64(truth), s.CountError(2*truth); off > told || told > 1.1*off {
		t.Errorf("a count is %v too high, told is %v", off, told)
	}
}
