package plan

import "math"

// FitParts returns the theta, none of them below 0, with the least sum of squared relative
// errors at some samples. Of samples of fewer than three numbers of parts a simpler fit is
// returned, with 0 for what they do not tell.
func FitParts(samples []PartSample) PartFit {
	best := PartFit{Error: math.Inf(1)}
	// The least with bounds has some theta at 0 and is the least without bounds of the
	// others: all choices of which are tried, fewest first.
	for used := 1; used < 8; used++ {
		theta, ok := solve(samples, used)
		if !ok {
			continue
		}
		f := PartFit{Theta: theta}
		f.Error = f.errorAt(samples)
		if f.Error < best.Error*(1-1e-9) {
			best = f
		}
	}
	if math.IsInf(best.Error, 1) {
		return PartFit{}
	}
	return best
}

func (f *PartFit) errorAt(samples []PartSample) float64 {
	sum := 0.0
	for _, s := range samples {
		e := f.At(s.Parts)/s.Seconds - 1
		sum += e * e
	}
	return math.Sqrt(sum / float64(len(samples)))
}

// solve returns the least squares with the theta whose bits are set in used; ok is false
// where one of them is below 0 or the samples do not tell them apart.
func solve(samples []PartSample, used int) (theta [3]float64, ok bool) {
	var a [3][4]float64 // normal equations
	for i := range a {
		a[i][i] = 1
	}
	for i := range 3 {
		if used>>i&1 == 0 {
			continue
		}
		a[i] = [4]float64{}
		for _, s := range samples {
			row := terms(s)
			for j := range 3 {
				if used>>j&1 == 1 {
					a[i][j] += row[i] * row[j]
				}
			}
			a[i][3] += row[i]
		}
	}
	if !eliminate(&a) {
		return theta, false
	}
	for i := range theta {
		if theta[i] = a[i][3]; theta[i] < 0 || math.IsNaN(theta[i]) {
			return theta, false
		}
	}
	return theta, true
}

// terms are what theta is multiplied with at a sample, over its time.
func terms(s PartSample) [3]float64 {
	p := float64(s.Parts)
	return [3]float64{1 / s.Seconds, 1 / p / s.Seconds, p / s.Seconds}
}

// eliminate solves three equations by Gauss's method with pivots, on scaled columns: the
// terms are of very different sizes.
func eliminate(a *[3][4]float64) bool {
	var scale [3]float64
	for j := range scale {
		scale[j] = math.Sqrt(a[j][j])
		if scale[j] == 0 || math.IsInf(scale[j], 0) || math.IsNaN(scale[j]) {
			return false
		}
	}
	for i := range 3 {
		for j := range 3 {
			a[i][j] /= scale[i] * scale[j]
		}
		a[i][3] /= scale[i]
	}
	for c := range 3 {
		p := c
		for r := c + 1; r < 3; r++ {
			if math.Abs(a[r][c]) > math.Abs(a[p][c]) {
				p = r
			}
		}
		if math.Abs(a[p][c]) < 1e-11 {
			return false
		}
		a[c], a[p] = a[p], a[c]
		for r := range 3 {
			if r == c {
				continue
			}
			f := a[r][c] / a[c][c]
			for j := c; j < 4; j++ {
				a[r][j] -= f * a[c][j]
			}
		}
	}
	for i := range 3 {
		a[i][3] /= a[i][i] * scale[i]
	}
	return true
}
