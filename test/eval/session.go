package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/psidecar/psidecar/cmd/psjob/metric"
	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/cmd/psjob/store"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

// A session trains a model synchronously in this process: workers and a server
// of psjob, whose messages go through the proxies' codec as they would over a
// link, without sockets.
type session struct {
	models   []model.Model // of each worker
	test     model.Model   // nil: none
	settings store.Settings
	batch    int // samples of a worker's step
	steps    int
	seed     uint64
	rules    []values.Rule
	every    int // steps between scorings of the test data; 0: at the end only
}

// result is what came of a session.
type result struct {
	train, test metric.Tally
	last        metric.Tally  // the test data once all that waited was sent, as at a job's end
	curve       []scored      // the test data, as worker 0 sees the model
	losses      []float64     // of each step: the mean over all workers' batches, before they are learned
	pushed      traffic       // of values' frames and what took the place of messages
	pulled      traffic       //
	codec       time.Duration // spent encoding and decoding pushes
}

type scored struct {
	step  int
	tally metric.Tally
}

// traffic is bytes of messages, as they were and as they went.
type traffic struct{ plain, encoded int }

// way is one direction of a link.
type way struct {
	sender   relay.Sender
	receiver relay.Receiver
	close    func()
}

var memory = relay.NewMemory(1 << 30)

func dial(from, to *values.Codec, id uint64, node string) (*way, error) {
	l := relay.Link{
		ID: id, Dialer: relay.Instance{1}, Acceptor: relay.Instance{2}, Dialed: true, HeadLimit: relay.HeadLimit, Memory: memory,
		Destination: netip.MustParseAddrPort("198.18.0.2:9000"), Origin: "here",
	}
	if id%2 == 1 {
		l.Dialer, l.Acceptor = l.Acceptor, l.Dialer
	}
	s, back, err := from.Open(l, to.Offer())
	if err != nil {
		return nil, err
	}
	l.Dialed = false
	forth, r, err := to.Open(l, from.Offer())
	if err != nil {
		return nil, err
	}
	s.(relay.Greeter).Ready(zmtp.Ready{Identity: []byte(node)})
	return &way{s, r, func() { s.Close(); back.Close(); forth.Close(); r.Close() }}, nil
}

// carry sends a message and returns its values as they arrive.
func (w *way) carry(frames [][]byte, at int, t *traffic) ([]byte, error) {
	for _, f := range frames {
		t.plain += len(f)
	}
	head, plain, ok := w.sender.Encode(nil, &relay.Message{Frames: frames})
	if !ok {
		for _, f := range frames {
			t.encoded += len(f)
		}
		return frames[at], nil
	}
	t.encoded += len(head)
	out, _, err := w.receiver.Decode(head)
	if err != nil {
		return nil, err
	}
	if plain&(1<<at) != 0 {
		t.encoded += len(frames[at])
		return frames[at], nil
	}
	return out[at], nil
}

// train runs the session.
func (s *session) train(ctx context.Context) (*result, error) {
	near, err := values.New(values.Options{Compact: compact.DefaultLimits, Rules: s.rules})
	if err != nil {
		return nil, err
	}
	far, err := values.New(values.Options{Compact: compact.DefaultLimits, Rules: s.rules})
	if err != nil {
		return nil, err
	}
	server, err := store.New(s.settings)
	if err != nil {
		return nil, err
	}
	r := &result{}
	var batches, before metric.Tally
	var workers []*trainee
	for i, m := range s.models {
		w := &trainee{session: s, model: m, server: server, result: r, order: rand.New(rand.NewPCG(s.seed, uint64(i)))}
		if w.up, err = dial(near, far, uint64(2*i), fmt.Sprintf("ps%d", 9+2*i)); err != nil {
			return nil, err
		}
		defer w.up.close()
		if w.down, err = dial(far, near, uint64(2*i+1), "ps8"); err != nil {
			return nil, err
		}
		defer w.down.close()
		workers = append(workers, w)
	}
	for step := range s.steps {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for _, w := range workers {
			if err := w.learn(int32(step), &batches); err != nil {
				return nil, fmt.Errorf("step %d: %w", step, err)
			}
		}
		r.losses = append(r.losses, batches.LossSince(&before))
		if s.every > 0 && (step+1)%s.every == 0 {
			tally, err := workers[0].score(s.test, int32(step+1))
			if err != nil {
				return nil, err
			}
			r.curve = append(r.curve, scored{step + 1, tally})
		}
	}
	for _, w := range workers {
		tally, err := w.score(w.model, int32(s.steps))
		if err != nil {
			return nil, err
		}
		r.train.Add(tally)
	}
	if s.test == nil {
		return r, nil
	}
	if r.test, err = workers[0].score(s.test, int32(s.steps)); err != nil {
		return nil, err
	}
	if err := near.SetRules(nil); err != nil {
		return nil, err
	}
	for _, w := range workers {
		if err := w.finish(int32(s.steps)); err != nil {
			return nil, err
		}
	}
	r.last, err = workers[0].score(s.test, int32(s.steps)+1)
	return r, err
}

// finish pushes nothing to every key of the worker's, with which goes what
// waits of them.
func (w *trainee) finish(step int32) error {
	pushed := w.pushed
	all := make([]int32, w.model.Samples())
	for i := range all {
		all[i] = int32(i)
	}
	for _, group := range w.model.Groups(all) {
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

// trainee is a worker of a session.
type trainee struct {
	*session
	*result
	model    model.Model
	server   *store.Store
	up, down *way
	order    *rand.Rand
	left     []int32 // samples of this epoch
	stamp    int32
	params   [][]float32
}

// learn makes a step and counts its predictions in tally.
func (w *trainee) learn(step int32, tally *metric.Tally) error {
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
	scale := 1 / float32(w.batch*len(w.models))
	for g, group := range groups {
		for i := range grads[g] {
			grads[g][i] *= scale
		}
		began := time.Now()
		vals, err := w.up.carry(w.frames(group, grads[g], true), 2, &w.pushed)
		if err != nil {
			return err
		}
		w.codec += time.Since(began)
		if err := w.server.Push(step, group.Keys, floats(vals), group.Lens); err != nil {
			return err
		}
	}
	return nil
}

// next returns the samples of a step: those at the beginning of w.left.
func (w *trainee) next() []int32 {
	for len(w.left) < w.batch {
		for _, i := range w.order.Perm(w.model.Samples()) {
			w.left = append(w.left, int32(i))
		}
	}
	return w.left[:w.batch]
}

// pull fills w.params.
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

// request returns a pull's request.
func (w *trainee) request(g model.Group) [][]byte {
	frames := w.frames(g, nil, true)
	m := pslite.Meta{Timestamp: w.stamp, Request: true, Pull: true, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
	if g.Lens != nil {
		m.DataTypes = append(m.DataTypes, pslite.Int32)
	}
	frames[0] = m.Append(nil, pslite.DMLC)
	return frames
}

// frames returns a push, or a pull's answer.
func (w *trainee) frames(g model.Group, vals []float32, push bool) [][]byte {
	w.stamp++
	m := pslite.Meta{Timestamp: w.stamp, Request: push, Push: push, Pull: !push, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
	data := [][]byte{pslite.AppendKeys(nil, g.Keys), pslite.AppendFloat32(nil, vals)}
	if g.Lens != nil {
		m.DataTypes = append(m.DataTypes, pslite.Int32)
		data = append(data, pslite.AppendLens(nil, g.Lens))
	}
	return append([][]byte{m.Append(nil, pslite.DMLC)}, data...)
}

// score predicts all samples of a model.
func (w *trainee) score(m model.Model, step int32) (tally metric.Tally, err error) {
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

func floats(b []byte) []float32 {
	v := make([]float32, len(b)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return v
}
