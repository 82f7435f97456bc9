package model

// Momentum turns the gradients of a model whose groups are the same in every step
// into what momentum learns by: the sum of all gradients so far, each Factor times
// smaller with every step since (Polyak 1964). The server's rule then takes that sum
// as its gradient. It is the worker's momentum; servers may have one of their own
// (kv.StoreSettings). The zero value with a Factor is ready.
type Momentum struct {
	Factor   float32 // 0 to below 1; 0: the gradients stay as they are
	velocity [][]float32
}

// Apply replaces grads, which must have the shape of every call before.
func (m *Momentum) Apply(grads [][]float32) {
	if m.Factor == 0 {
		return
	}
	if m.velocity == nil {
		for _, g := range grads {
			m.velocity = append(m.velocity, make([]float32, len(g)))
		}
	}
	for i, g := range grads {
		v := m.velocity[i]
		for j := range g {
			v[j] = m.Factor*v[j] + g[j]
			g[j] = v[j]
		}
	}
}
