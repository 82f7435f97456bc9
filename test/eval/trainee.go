package main

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"time"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// finish pushes zeros to every key of the worker's, along with which goes what waits of them.
// These pushes are not counted as traffic.
func (w *trainee) finish(step int32) error {
	pushed := w.pushed
	for _, group := range w.model.Groups(whole(w.model)) {
		vals, err := w.up.carry(w.frames(group, make([]float32, group.Values()), true), 2, &w.pushed)
		if err != nil {
			return err
		}
		if err := w.server.Push(step, group.Keys, floats(vals), group.Lens); err != nil {
			return err
		}
	}
	w.pushed = pushed
	return nil
}

// whole returns the numbers of all samples of a model.
func whole(m model.Model) []int32 {
	all := make([]int32, m.Samples())
	for i := range all {
		all[i] = int32(i)
	}
	return all
}

// trainee is a worker of a session, with its link to the server. It adds to the session's
// result.
type trainee struct {
	*session
	*result
	model    model.Model
	server   *kv.Store
	up, down *way // to the server and back
	order    *rand.Rand
	left     []int32     // samples of this epoch
	stamp    int32       // timestamp of the last message
	params   [][]float32 // of the last pull, by group
	momentum model.Momentum
}

// learn makes a step: it pulls, computes the gradient of the next batch and pushes it. It
// counts the predictions in tally.
func (w *trainee) learn(step int32, tally *model.Tally) error {
	groups := w.model.Groups(w.next())
	if err := w.pull(groups, step); err != nil {
		return err
	}
	grads := make([][]float32, len(groups))
	for g := range groups {
		grads[g] = make([]float32, len(w.params[g]))
	}
	w.model.Gradient(w.left[:w.batch], w.params, grads, tally)
	w.left = w.left[w.batch:]
	// The servers add up what all workers push, so that each pushes its part of the mean.
	scale := w.rate(step) / float32(w.batch*len(w.models))
	for g := range grads {
		for i := range grads[g] {
			grads[g][i] *= scale
		}
	}
	// The worker's own, before the codec: what waits is of the steps as they would be pushed.
	w.momentum.Apply(grads)
	if w.watch != nil && w.model == w.models[0] {
		w.watch.see(groups, grads)
	}
	for g, group := range groups {
		// Encoding and decoding, without the server's work.
		began := time.Now()
		vals, err := w.up.carry(w.frames(group, grads[g], true), 2, &w.pushed)
		if err != nil {
			return err
		}
		w.codec += time.Since(began)
		w.values += len(grads[g])
		if err := w.server.Push(step, group.Keys, floats(vals), group.Lens); err != nil {
			return err
		}
	}
	return nil
}

// next returns the samples of a step, which stay at the beginning of w.left. An epoch is a new
// random order of all samples.
func (w *trainee) next() []int32 {
	for len(w.left) < w.batch {
		for _, i := range w.order.Perm(w.model.Samples()) {
			w.left = append(w.left, int32(i))
		}
	}
	return w.left[:w.batch]
}

// pull sets w.params to the values of groups, as they arrive through the codecs.
func (w *trainee) pull(groups []model.Group, step int32) error {
	w.params = make([][]float32, len(groups))
	for g, group := range groups {
		// The request goes the way of the pushes: these then need not say the
		// same keys again.
		if _, err := w.up.carry(w.request(group), 1, &w.pulled); err != nil {
			return err
		}
		vals, err := w.server.Pull(step, group.Keys, group.Lens, nil)
		if err != nil {
			return err
		}
		came, err := w.down.carry(w.frames(group, vals, false), 2, &w.pulled)
		if err != nil {
			return err
		}
		w.params[g] = floats(came)
	}
	return nil
}

// request returns the message of a pull's request.
func (w *trainee) request(g model.Group) [][]byte {
	frames := w.frames(g, nil, true)
	m := pslite.Meta{Timestamp: w.stamp, Request: true, Pull: true, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
	if g.Lens != nil {
		m.DataTypes = append(m.DataTypes, pslite.Int32)
	}
	frames[0] = m.Append(nil, pslite.DMLC)
	return frames
}

// frames returns the message of a push, or of a pull's answer.
func (w *trainee) frames(g model.Group, vals []float32, push bool) [][]byte {
	w.stamp++
	m := pslite.Meta{Timestamp: w.stamp, Request: push, Push: push, Pull: !push, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
	data := [][]byte{pslite.AppendKeys(nil, g.Keys), pslite.AppendFloat32(make([]byte, 0, 4*len(vals)), vals)}
	if g.Lens != nil {
		m.DataTypes = append(m.DataTypes, pslite.Int32)
		data = append(data, pslite.AppendLens(nil, g.Lens))
	}
	return append([][]byte{m.Append(nil, pslite.DMLC)}, data...)
}

// score predicts all samples of a model, which may be of other data, with the parameters that
// the worker sees. What it pulls is not counted as traffic.
func (w *trainee) score(m model.Model, step int32) (tally model.Tally, err error) {
	// samples at a time, which bounds the memory
	const chunk = 2000
	pulled := w.pulled
	for from := 0; from < m.Samples(); from += chunk {
		var batch []int32
		for i := from; i < min(from+chunk, m.Samples()); i++ {
			batch = append(batch, int32(i))
		}
		if err := w.pull(m.Groups(batch), step); err != nil {
			return tally, err
		}
		m.Score(batch, w.params, &tally)
	}
	w.pulled = pulled
	return tally, nil
}

// floats decodes values of four bytes, little-endian.
func floats(b []byte) []float32 {
	v := make([]float32, len(b)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return v
}
