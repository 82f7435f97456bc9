package model

// Factor is a factorization machine of degree 2 (Rendle 2010): for each key a weight
// and a vector of Factors values, so Factors+1 values.
type Factor struct {
	set     *Sparse
	factors int
	seed    uint64
	batch   Columns
	group   [1]Group
	sums    []float64 // by factor, over the features of the sample at hand
}

// NewFactor returns the model for the samples of a worker.
func NewFactor(set *Sparse, factors int, seed uint64) *Factor {
	return &Factor{set: set, factors: factors, seed: seed, sums: make([]float64, factors)}
}

// Samples returns how many samples there are.
func (m *Factor) Samples() int { return m.set.Len() }

// Groups returns the batch's features as one group.
func (m *Factor) Groups(batch []int32) []Group {
	m.group[0] = Group{Keys: m.batch.Of(m.set, batch), Width: m.factors + 1}
	return m.group[:]
}

// Gradient implements [Model].
func (m *Factor) Gradient(batch []int32, params, grads [][]float32, tally *Tally) {
	clear(grads[0])
	m.pass(batch, params[0], grads[0], tally)
}

// Score implements [Model].
func (m *Factor) Score(batch []int32, params [][]float32, tally *Tally) {
	m.pass(batch, params[0], nil, tally)
}

// pass predicts by Rendle 2010, equation 5 (lemma 3.1), which is linear in the
// features, and differentiates by its equation 4. Without grad it only predicts.
func (m *Factor) pass(batch []int32, params, grad []float32, tally *Tally) {
	const scale = 0.05
	keys := m.batch.Of(m.set, batch)
	width := m.factors + 1
	// Without initial values the vectors would stay zero: each one's gradient is a
	// multiple of the others.
	AddInitial(m.seed, keys, params, width, 1, scale)
	for _, s := range batch {
		columns, values, yes := m.set.Sample(int(s))
		odds := 0.0
		clear(m.sums)
		for i, c := range columns {
			at := m.batch.At(c) * width
			x := float64(values[i])
			odds += float64(params[at]) * x
			for f, v := range params[at+1 : at+width] {
				vx := float64(v) * x
				m.sums[f] += vx
				odds -= vx * vx / 2
			}
		}
		for _, sum := range m.sums {
			odds += sum * sum / 2
		}
		tally.Binary(odds, yes)
		if grad == nil {
			continue
		}
		d := slope(odds, yes)
		for i, c := range columns {
			at := m.batch.At(c) * width
			x := values[i]
			grad[at] += d * x
			for f, v := range params[at+1 : at+width] {
				grad[at+1+f] += d * x * (float32(m.sums[f]) - v*x)
			}
		}
	}
}
