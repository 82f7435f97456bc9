package model

// Linear is logistic regression on sparse samples: one value a key. A step's keys are
// the features that occur in its batch.
type Linear struct {
	set   *Sparse
	batch Columns
	group [1]Group
}

// NewLinear returns the model for the samples of a worker.
func NewLinear(set *Sparse) *Linear { return &Linear{set: set} }

// Samples returns how many samples there are.
func (m *Linear) Samples() int { return m.set.Len() }

// Groups returns the batch's features as one group.
func (m *Linear) Groups(batch []int32) []Group {
	m.group[0] = Group{Keys: m.batch.Of(m.set, batch), Width: 1}
	return m.group[:]
}

// Gradient implements [Model].
func (m *Linear) Gradient(batch []int32, params, grads [][]float32, tally *Tally) {
	clear(grads[0])
	m.pass(batch, params[0], grads[0], tally)
}

// Score implements [Model].
func (m *Linear) Score(batch []int32, params [][]float32, tally *Tally) {
	m.pass(batch, params[0], nil, tally)
}

// pass predicts, and adds up the gradient unless grad is nil.
func (m *Linear) pass(batch []int32, w, grad []float32, tally *Tally) {
	// Params are in the order of the keys that Of returns; At finds a feature's among
	// them.
	m.batch.Of(m.set, batch)
	for _, s := range batch {
		columns, values, yes := m.set.Sample(int(s))
		odds := 0.0
		for i, c := range columns {
			odds += float64(w[m.batch.At(c)]) * float64(values[i])
		}
		tally.Binary(odds, yes)
		if grad == nil {
			continue
		}
		d := slope(odds, yes)
		for i, c := range columns {
			grad[m.batch.At(c)] += d * values[i]
		}
	}
}
