// Package matrix multiplies small dense matrices of float32, which is what a
// fully connected layer does: its outputs, the gradient of its weights and that
// of its inputs. Package model calls it with the batch of a step. Matrices are
// flat lists, row after row; nothing is allocated. On processors with AVX2 and
// FMA generated assembly does the bulk, elsewhere plain Go; the two round
// differently in the last bits.
package matrix

// lanes is how many rows a kernel takes at a time.
const lanes = 4

// Outputs sets y, rows x outs, to x w^T plus a bias for each column: x has rows x ins,
// w outs x ins and bias outs numbers.
func Outputs(y, x, w, bias []float32, ins int) {
	outs := len(bias)
	rows := len(y) / max(1, outs)
	var sums [lanes]float32
	for o := range outs {
		weights := w[o*ins : (o+1)*ins]
		r := 0
		for ; r+lanes <= rows; r += lanes {
			dots(&sums, weights, x[r*ins:(r+lanes)*ins])
			for k, s := range sums {
				y[(r+k)*outs+o] = bias[o] + s
			}
		}
		for ; r < rows; r++ {
			y[r*outs+o] = bias[o] + Dot(weights, x[r*ins:(r+1)*ins])
		}
	}
}

// AddWeights adds to gw, outs x ins, d^T x, and to gbias, outs, the columns'
// sums of d: the loss's derivative d, rows x outs, carried to the weights.
func AddWeights(gw, gbias, d, x []float32, ins int) {
	outs := len(gbias)
	rows := len(d) / max(1, outs)
	var factors [lanes]float32
	for o := range outs {
		g := gw[o*ins : (o+1)*ins]
		r := 0
		for ; r+lanes <= rows; r += lanes {
			any := false
			for k := range factors {
				factors[k] = d[(r+k)*outs+o]
				gbias[o] += factors[k]
				any = any || factors[k] != 0
			}
			if any {
				combine(g, &factors, x[r*ins:(r+lanes)*ins])
			}
		}
		for ; r < rows; r++ {
			f := d[r*outs+o]
			gbias[o] += f
			if f != 0 {
				AddScaled(g, f, x[r*ins:(r+1)*ins])
			}
		}
	}
}

// AddInputs adds to dx, rows x ins, d w: the loss's derivative d, rows x outs,
// carried to the inputs.
func AddInputs(dx, d, w []float32, outs, ins int) {
	rows := len(d) / max(1, outs)
	var factors [lanes]float32
	o := 0
	for ; o+lanes <= outs; o += lanes {
		weights := w[o*ins : (o+lanes)*ins]
		for r := range rows {
			copy(factors[:], d[r*outs+o:])
			if factors != [lanes]float32{} {
				combine(dx[r*ins:(r+1)*ins], &factors, weights)
			}
		}
	}
	for ; o < outs; o++ {
		for r := range rows {
			if f := d[r*outs+o]; f != 0 {
				AddScaled(dx[r*ins:(r+1)*ins], f, w[o*ins:(o+1)*ins])
			}
		}
	}
}

// Dot returns the inner product of a and b, which has at least a's length.
func Dot(a, b []float32) float32 {
	b = b[:len(a)]
	var s [lanes]float32
	i := 0
	for ; i+lanes <= len(a); i += lanes {
		s[0] += a[i] * b[i]
		s[1] += a[i+1] * b[i+1]
		s[2] += a[i+2] * b[i+2]
		s[3] += a[i+3] * b[i+3]
	}
	for ; i < len(a); i++ {
		s[0] += a[i] * b[i]
	}
	return s[0] + s[1] + s[2] + s[3]
}

// AddScaled adds f times x to y, which has at least x's length.
func AddScaled(y []float32, f float32, x []float32) {
	y = y[:len(x)]
	for i, v := range x {
		y[i] += f * v
	}
}

// dots sets sums to the inner products of w with each of x's rows, which are
// lanes, of w's length.
func dots(sums *[lanes]float32, w, x []float32) {
	n := len(w)
	done := dotsVector(sums, w, x)
	for k := range sums {
		sums[k] += Dot(w[done:], x[k*n+done:])
	}
}

// combine adds to y the sum of x's rows, which are lanes, of y's length, each
// times its factor.
func combine(y []float32, factors *[lanes]float32, x []float32) {
	n := len(y)
	a, b, c, d := x[:n], x[n:2*n], x[2*n:3*n], x[3*n:4*n]
	for i := combineVector(y, factors, x); i < n; i++ {
		y[i] += factors[0]*a[i] + factors[1]*b[i] + factors[2]*c[i] + factors[3]*d[i]
	}
}
