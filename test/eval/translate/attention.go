package translate

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"

	"github.com/psidecar/psidecar/cmd/psjob/model"
)

// spans are the rows at which the sentences of a batch begin, and at the end the
// number of rows: sentence s has the rows [spans[s], spans[s+1]).
type spans []int

// attention is multi-head attention (Vaswani et al. 2017, section 3.2) from the rows
// of each sentence to those of its memory. Its parameters are four linear layers, one
// behind the other: of the queries, the keys, the values, and of what the heads
// found. What forward computes is kept for backward; one batch at a time.
type attention struct {
	width, heads       int
	causal             bool // a row attends to itself and the rows before it
	query, key, value  *model.Net
	out                *model.Net
	rows, columns      spans
	q, k, v            []float32 // what the first three layers returned
	weights            []float32 // the softmax, of each sentence and head, row by row
	mixed              []float32
	dQ, dK, dV, dScore []float32
}

func newAttention(width, heads int, causal bool) *attention {
	linear := func() *model.Net { return model.NewNet(true, width, width) }
	return &attention{width: width, heads: heads, causal: causal, query: linear(), key: linear(), value: linear(), out: linear()}
}

func (a *attention) values() int { return 4 * a.query.Values() }

// initial returns initial parameters: weights with a variance of 1/inputs, biases of
// zero.
func (a *attention) initial(seed uint64) (w []float32) {
	for i, n := range []*model.Net{a.query, a.key, a.value, a.out} {
		w = append(w, widened(n.Initial(seed+1000*uint64(i)))...)
	}
	return w
}

// widened turns a net's last layer's initial weights, which are small (a variance of
// 2/(16 inputs)), into those of a linear layer that stands alone.
func widened(w []float32) []float32 {
	blas32.Scal(float32(math.Sqrt(8)), vector(w))
	return w
}

// parts returns the parameters, or gradients, of the four layers.
func (a *attention) parts(w []float32) (parts [4][]float32) {
	n := a.query.Values()
	for i := range parts {
		parts[i] = w[i*n : (i+1)*n]
	}
	return parts
}

// forward returns a row for each row of input. memory may be input itself, which
// makes it self-attention.
func (a *attention) forward(w, input, memory []float32, rows, columns spans) []float32 {
	p := a.parts(w)
	a.rows, a.columns = rows, columns
	q, k, v := a.query.Forward(p[0], input), a.key.Forward(p[1], memory), a.value.Forward(p[2], memory)
	a.q, a.k, a.v = q, k, v
	mixed := resize(&a.mixed, len(q))
	a.weights = a.weights[:0]
	scale := float32(1 / math.Sqrt(float64(a.width/a.heads)))
	a.each(func(sentence, head, n, m int) {
		at := len(a.weights)
		a.weights = append(a.weights, make([]float32, n*m)...)
		s := dense(a.weights[at:], m)
		blas32.Gemm(blas.NoTrans, blas.Trans, scale, a.head(q, rows, sentence, head), a.head(k, columns, sentence, head), 0, s)
		for i := range n {
			seen := m
			if a.causal {
				seen = i + 1
			}
			row := s.Data[i*m : (i+1)*m]
			// Later words must not help to predict a row: their weight is zero,
			softmax(row[:seen])
			clear(row[seen:])
		}
		blas32.Gemm(blas.NoTrans, blas.NoTrans, 1, s, a.head(v, columns, sentence, head), 0, a.head(mixed, rows, sentence, head))
	})
	return a.out.Forward(p[3], mixed)
}

// backward adds the parameters' gradient to grad and returns the derivatives with
// respect to the input and to the memory. If the two are the same rows the caller
// adds them up.
func (a *attention) backward(w, delta, grad []float32) (dInput, dMemory []float32) {
	p, g := a.parts(w), a.parts(grad)
	q, k, v := a.q, a.k, a.v
	dMixed := a.out.Backward(p[3], delta, g[3])
	dQ, dK, dV := resize(&a.dQ, len(q)), resize(&a.dK, len(k)), resize(&a.dV, len(v))
	scale := float32(1 / math.Sqrt(float64(a.width/a.heads)))
	// The weights were appended in the order in which each goes over sentences and
	// heads.
	at := 0
	a.each(func(sentence, head, n, m int) {
		s := dense(a.weights[at:at+n*m], m)
		at += n * m
		// dScore is only needed within one head, so all of them share its memory.
		d := dense(resize(&a.dScore, n*m), m)
		dm := a.head(dMixed, a.rows, sentence, head)
		blas32.Gemm(blas.Trans, blas.NoTrans, 1, s, dm, 0, a.head(dV, a.columns, sentence, head))
		blas32.Gemm(blas.NoTrans, blas.Trans, 1, dm, a.head(v, a.columns, sentence, head), 0, d)
		for i := range n {
			weights, by := s.Data[i*m:(i+1)*m], d.Data[i*m:(i+1)*m]
			// The derivative of a softmax s: s_j (d_j - sum_k s_k d_k).
			sum := dot(weights, by)
			for j := range by {
				by[j] = weights[j] * (by[j] - sum)
			}
		}
		blas32.Gemm(blas.NoTrans, blas.NoTrans, scale, d, a.head(k, a.columns, sentence, head), 0, a.head(dQ, a.rows, sentence, head))
		blas32.Gemm(blas.Trans, blas.NoTrans, scale, d, a.head(q, a.rows, sentence, head), 0, a.head(dK, a.columns, sentence, head))
	})
	dInput = a.query.Backward(p[0], dQ, g[0])
	dMemory = a.key.Backward(p[1], dK, g[1])
	addScaled(dMemory, 1, a.value.Backward(p[2], dV, g[2]))
	return dInput, dMemory
}

// each calls f for each head of each sentence, with the number of its rows and of
// those of its memory.
func (a *attention) each(f func(sentence, head, n, m int)) {
	for s := range len(a.rows) - 1 {
		for h := range a.heads {
			f(s, h, a.rows[s+1]-a.rows[s], a.columns[s+1]-a.columns[s])
		}
	}
}

// head returns the part of a list that belongs to a sentence and a head, as a matrix
// in place: a head has some of the columns of each row.
func (a *attention) head(list []float32, of spans, sentence, head int) blas32.General {
	part := a.width / a.heads
	from, to := of[sentence]*a.width+head*part, (of[sentence+1]-1)*a.width+(head+1)*part
	return blas32.General{Rows: of[sentence+1] - of[sentence], Cols: part, Stride: a.width, Data: list[from:to]}
}

// softmax turns scores into shares of one, and returns the logarithm of the sum that
// the exponentials of the scores were divided by. The largest score is subtracted
// first, so that nothing overflows.
func softmax(row []float32) float64 {
	most := row[0]
	for _, v := range row {
		most = max(most, v)
	}
	sum := 0.0
	for i, v := range row {
		e := math.Exp(float64(v - most))
		row[i] = float32(e)
		sum += e
	}
	for i := range row {
		row[i] = float32(float64(row[i]) / sum)
	}
	return float64(most) + math.Log(sum)
}

// norm is layer normalization (Ba et al. 2016): each row gets a mean of 0 and a
// variance of 1, then a gain and a shift by column. Its parameters are the gains,
// then the shifts.
type norm struct {
	width    int
	hat, out []float32
	inverse  []float32 // of each row: 1 / its standard deviation
	delta    []float32
}

func (n *norm) values() int { return 2 * n.width }

func (n *norm) initial() []float32 {
	w := make([]float32, 2*n.width)
	for i := range n.width {
		w[i] = 1
	}
	return w
}

// forward normalizes each row and keeps what backward needs: the normalized rows and
// the inverse deviations. Sums are in float64; a deviation of zero is kept from
// dividing by 1e-5.
func (n *norm) forward(w, input []float32) []float32 {
	hat, out := resize(&n.hat, len(input)), resize(&n.out, len(input))
	rows := len(input) / n.width
	resize(&n.inverse, rows)
	for r := range rows {
		x, h, y := input[r*n.width:(r+1)*n.width], hat[r*n.width:(r+1)*n.width], out[r*n.width:(r+1)*n.width]
		mean, square := 0.0, 0.0
		for _, v := range x {
			mean += float64(v)
		}
		mean /= float64(n.width)
		for _, v := range x {
			square += (float64(v) - mean) * (float64(v) - mean)
		}
		n.inverse[r] = float32(1 / math.Sqrt(square/float64(n.width)+1e-5))
		for i, v := range x {
			h[i] = (v - float32(mean)) * n.inverse[r]
			y[i] = h[i]*w[i] + w[n.width+i]
		}
	}
	return out
}

// backward adds the parameters' gradient to grad and returns the derivative with
// respect to the input. The mean and the variance depend on all of a row, so two sums
// over it are taken away from each derivative.
func (n *norm) backward(w, delta, grad []float32) []float32 {
	by := resize(&n.delta, len(delta))
	for r := range len(delta) / n.width {
		d, h, x := delta[r*n.width:(r+1)*n.width], n.hat[r*n.width:(r+1)*n.width], by[r*n.width:(r+1)*n.width]
		// mean is that of the derivative by the normalized row, along its component
		// along that row: both directions were taken out by normalizing.
		mean, along := float32(0), float32(0)
		for i, v := range d {
			grad[i] += v * h[i]
			grad[n.width+i] += v
			x[i] = v * w[i]
			mean += x[i]
			along += x[i] * h[i]
		}
		mean /= float32(n.width)
		along /= float32(n.width)
		for i := range x {
			x[i] = n.inverse[r] * (x[i] - mean - h[i]*along)
		}
	}
	return by
}

// dense returns a flat list, row after row, as a matrix. It is not copied.
func dense(list []float32, columns int) blas32.General {
	return blas32.General{Rows: len(list) / columns, Cols: columns, Stride: columns, Data: list}
}

// addScaled adds f times x to y; dot is the inner product.
func addScaled(y []float32, f float32, x []float32) { blas32.Axpy(f, vector(x), vector(y)) }

func dot(x, y []float32) float32 { return blas32.Dot(vector(x), vector(y)) }

func vector(x []float32) blas32.Vector { return blas32.Vector{N: len(x), Inc: 1, Data: x} }

// resize returns a list's memory with n elements of any content, grown if need be.
func resize(list *[]float32, n int) []float32 {
	*list = slices.Grow((*list)[:0], n)[:n]
	return *list
}
