package plan

import "math"

// FitParts returns the theta, none below 0, that minimizes the sum of squared relative errors at
// the samples. With fewer than three different numbers of parts it fits fewer terms and leaves the
// others 0.
func FitParts(samples []PartSample) PartFit {
	best := PartFit{Error: math.Inf(1)}
	// At the minimum under theta >= 0 some theta are 0, and the others minimize the error without
	// bounds. So all subsets are tried, and the feasible one with the least error is the minimum. A
	// larger subset must be better by more than rounding.
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

// errorAt returns the root mean square of the relative errors.
func (f *PartFit) errorAt(samples []PartSample) float64 {
	sum := 0.0
	for _, s := range samples {
		e := f.At(s.Parts)/s.Seconds - 1
		sum += e * e
	}
	return math.Sqrt(sum / float64(len(samples)))
}

// solve minimizes over the theta whose bits are set in used. ok is false if one of them comes out
// below 0, or if the samples do not determine them.
func solve(samples []PartSample, used int) (theta [3]float64, ok bool) {
	// The normal equations; unused theta have the equation theta = 0.
	var a [3][4]float64
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

// terms returns the coefficients of theta at a sample, divided by its duration, since errors are
// relative.
func terms(s PartSample) [3]float64 {
	p := float64(s.Parts)
	return [3]float64{1 / s.Seconds, 1 / p / s.Seconds, p / s.Seconds}
}

// eliminate solves three equations in place by Gaussian elimination with pivoting; the solution is
// in the last column. Rows and columns are scaled to a unit diagonal first, because 1, 1/P and P
// are of very different sizes. It returns false if the matrix is singular.
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
