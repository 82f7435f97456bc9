package plan

import (
	"cmp"
	"math"
	"slices"
)

// MaxPartSamples is how many different P a search measures at most. Each costs the job a
// repartitioning.
const MaxPartSamples = 8

// A PartSample is the measured duration of a step with a number of parts.
type PartSample struct {
	Parts   int     `json:"parts"`
	Seconds float64 `json:"seconds"`
}

// A PartSearch looks for the number of parts with which a step is shortest. As in Parallax it
// starts with one part for each server and doubles until a step gets slower, then halves from the
// start. After that it measures where the fit has its minimum. It measures no P twice, and at most
// MaxPartSamples.
//
// The caller alternates Next and Measured until Next returns false. A PartSearch is not safe for
// concurrent use.
type PartSearch struct {
	servers, most int
	samples       []PartSample
	halving       bool // set when doubling has ended: more parts were slower, or are not possible
	turned        bool // set when halving has ended too
}

// NewPartSearch begins a search for a job with that many servers and a value that can be divided
// into at most most parts. Both are at least 1.
func NewPartSearch(servers, most int) *PartSearch {
	most = max(most, 1)
	return &PartSearch{servers: min(max(servers, 1), most), most: most}
}

// Samples returns the measurements in order. The caller must not change them.
func (s *PartSearch) Samples() []PartSample { return s.samples }

// Next returns the number of parts to measure next; ok is false if enough is known. It changes
// nothing.
func (s *PartSearch) Next() (parts int, ok bool) {
	if len(s.samples) == 0 {
		return s.servers, true
	}
	if len(s.samples) >= MaxPartSamples {
		return 0, false
	}
	last := s.samples[len(s.samples)-1].Parts
	// One sample is left for what the fit says.
	if !s.turned && len(s.samples) < MaxPartSamples-1 {
		if s.halving {
			return max(min(last, s.servers)/2, 1), true
		}
		return min(2*last, s.most), true
	}
	// The fit is good near the samples only. Check its minimum by a measurement, then, if the fit
	// is bad, a point between the samples.
	fit := s.fit()
	best := fit.Best(s.most)
	if s.isNew(best) {
		return best, true
	}
	if between := s.between(); (len(s.samples) < 3 || fit.Error > misfit) && s.isNew(between) {
		return between, true
	}
	return 0, false
}

// misfit is the relative error of a fit above which the search also measures between its samples.
const misfit = 0.02

// between returns the number of parts between the best sample and its neighbour on the side of the
// wider gap, as a geometric mean, since samples are spread by factors.
func (s *PartSearch) between() int {
	best, _ := s.Result()
	below, above := 0, 0
	for _, m := range s.samples {
		if m.Parts < best {
			below = max(below, m.Parts)
		} else if m.Parts > best && (above == 0 || m.Parts < above) {
			above = m.Parts
		}
	}
	other := above
	if below > 0 && (above == 0 || best*best > above*below) { // best/below is more than above/best
		other = below
	}
	if other == 0 {
		return best
	}
	return int(math.Round(math.Sqrt(float64(best) * float64(other))))
}

// isNew reports whether neither parts nor a number within 2% of it was measured.
func (s *PartSearch) isNew(parts int) bool {
	return !slices.ContainsFunc(s.samples, func(m PartSample) bool { return math.Abs(float64(m.Parts-parts)) < 0.02*float64(parts) })
}

// Measured records the mean duration of a step, in seconds, with the number of parts that Next
// returned.
func (s *PartSearch) Measured(seconds float64) {
	parts, ok := s.Next()
	if !ok {
		return
	}
	turning := !s.turned && len(s.samples) < MaxPartSamples-1
	var before float64
	if n := len(s.samples); n > 0 {
		before = s.samples[n-1].Seconds
		// The first halved P is compared with the start, not with the last doubled one.
		if s.halving && len(s.samples) > 1 && s.samples[n-1].Parts > s.servers {
			before = s.samples[0].Seconds
		}
	}
	first := len(s.samples) == 0
	s.samples = append(s.samples, PartSample{parts, seconds})
	if !turning || first {
		if first && s.most == s.servers {
			s.turn()
		}
		return
	}
	if seconds >= before {
		s.turn()
	} else if s.halving && parts == 1 || !s.halving && parts == s.most {
		s.turn()
	}
}

// turn ends doubling and begins halving, or ends the search by factors. After a second doubling the
// minimum is known not to lie below the start, and halving is left out.
func (s *PartSearch) turn() {
	if s.halving || s.servers == 1 || len(s.samples) > 2 {
		s.turned = true
		return
	}
	s.halving = true
}

// A PartFit is a fitted theta and how well it fits.
type PartFit struct {
	Theta [3]float64 `json:"theta"` // seconds; times 1, 1/P and P
	// Error is the root mean square of the relative errors at the samples.
	Error float64 `json:"error"`
}

// At returns the fitted duration of a step with P parts, in seconds.
func (f *PartFit) At(parts int) float64 {
	p := float64(parts)
	return f.Theta[0] + f.Theta[1]/p + f.Theta[2]*p
}

// Best returns the number of parts, at most most, with which the fitted step is shortest: the
// better neighbour of sqrt(theta1/theta2).
func (f *PartFit) Best(most int) int {
	switch {
	case f.Theta[1] <= 0:
		return 1
	case f.Theta[2] <= 0:
		return most
	}
	low := int(min(math.Sqrt(f.Theta[1]/f.Theta[2]), float64(most)))
	low = max(low, 1)
	if high := min(low+1, most); f.At(high) < f.At(low) {
		return high
	}
	return low
}

// Result returns the number of parts whose measured step was shortest, and the fit of all samples.
// A measurement counts more than the fit.
func (s *PartSearch) Result() (parts int, fit PartFit) {
	if len(s.samples) == 0 {
		return s.servers, PartFit{}
	}
	least := slices.MinFunc(s.samples, func(a, b PartSample) int {
		return cmp.Or(cmp.Compare(a.Seconds, b.Seconds), cmp.Compare(a.Parts, b.Parts))
	})
	return least.Parts, s.fit()
}

func (s *PartSearch) fit() PartFit { return FitParts(s.samples) }
