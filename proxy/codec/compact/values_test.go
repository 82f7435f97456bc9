package compact

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/relay"
)

// sparseValues32 are n float32 numbers of which a share is not zero.
func sparseValues32(rng *rand.Rand, n int, share float64) []byte {
	b := make([]byte, 4*n)
	for i := range n {
		if rng.Float64() < share {
			binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(float32(rng.NormFloat64())))
		}
	}
	return b
}

// A dense push and a pull's answer most of which are zeros go in forty times fewer
// bytes, however long they are, and come out as they were.
func TestMostlyZeros(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	p := newTwoProxies(DefaultLimits)
	p.requests.sender.headLimit = 96 << 20
	p.answers.sender.headLimit = 96 << 20
	key := []uint64{4}
	for step := range int32(4) {
		values := sparseValues32(rng, 2<<20, 0.02)
		if !p.requests.holds(data(pslite.DMLC, step, true, true, false, key, values, nil)) {
			t.Fatal("the values of a push are not asked for")
		}
		p.requests.pass(t, data(pslite.DMLC, step, true, true, false, key, values, pslite.AppendLens(nil, []int32{2 << 20})))
		p.answers.pass(t, data(pslite.DMLC, step, false, false, true, key, values, nil))
	}
	for name, d := range map[string]direction{"pushes": p.requests, "answers": p.answers} {
		if ratio := float64(d.plain) / float64(d.encoded); ratio < 40 {
			t.Errorf("%s take %.1f times fewer bytes, want 40", name, ratio)
		}
	}
}

// holds shows the beginning of a message, its values not held.
func (d *direction) holds(frames [][]byte) bool {
	return d.sender.Hold(&relay.Message{Frames: frames[:2], Rest: true, Next: uint64(len(frames[2]))})
}

// Large values that are not sparse are asked for ever less often, those of another
// key are not affected, and what becomes sparse is noticed.
func TestHoldFollowsWhatPays(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	p := newTwoProxies(DefaultLimits)
	d := &p.requests
	d.sender.headLimit = 96 << 20
	dense, sparse := sparseValues32(rng, 1<<20, 1), sparseValues32(rng, 1<<20, 0.01)
	push := func(key uint64, values []byte) bool {
		frames := data(pslite.DMLC, 1, true, true, false, []uint64{key}, values, nil)
		held := d.holds(frames)
		if held {
			d.show(t, frames, 3)
		} else {
			d.show(t, frames, 2)
		}
		return held
	}
	held := 0
	for range 5000 {
		if push(1, dense) {
			held++
		}
	}
	if held > 20 {
		t.Errorf("%d of 5000 messages were held in vain", held)
	}
	for range 20 {
		if !push(2, sparse) {
			t.Fatal("values of another key are not asked for")
		}
	}
	tries := 0
	for ; !push(1, sparse); tries++ {
		if tries > mostSkips {
			t.Fatal("values that became sparse are never asked for")
		}
	}
	for range 20 {
		if !push(1, sparse) {
			t.Fatal("values that became sparse are not asked for any more")
		}
	}
	for key := range uint64(3 * maxTrials) {
		push(100+key, dense[:300<<10])
	}
	if n := len(d.sender.values.trials); n > maxTrials {
		t.Errorf("%d keys are remembered, want at most %d", n, maxTrials)
	}
}

// A proxy that does not know of sparse values gets none.
func TestSparseValuesAreNegotiated(t *testing.T) {
	limits := DefaultLimits
	limits.SparseBytes = 0
	p := newTwoProxies(lower(DefaultLimits, limits))
	frames := data(pslite.DMLC, 1, true, true, false, []uint64{1, 2}, sparseValues32(rand.New(rand.NewPCG(2, 2)), 1<<16, 0.01), nil)
	p.requests.pass(t, frames)
	if p.requests.holds(frames) {
		t.Error("values are asked for that cannot be sent so")
	}
	head, _, _ := p.requests.sender.Encode(nil, &relay.Message{Frames: frames})
	if len(head) > 0 && head[0]&sparseValues != 0 {
		t.Error("values went in a form that the other side does not know")
	}
}

// Dense floats go by planes in fewer bytes, come out as they were, and are left alone where the
// other end does not know of planes, or while encoding them takes longer than the link is spared.
func TestDenseFloats(t *testing.T) {
	values := sparseValues32(rand.New(rand.NewPCG(3, 3)), 2000, 1)
	keys := make([]uint64, 2000)
	for i := range keys {
		keys[i] = uint64(i)
	}
	for name, c := range map[string]struct {
		older   bool
		perByte float64 // 0: unknown
		planes  int     // messages, of 100
	}{"always": {planes: 100}, "a slow link": {perByte: 1e9, planes: 100}, "a fast link": {perByte: 1e-9, planes: 5}, "an older proxy": {older: true}} {
		limits := DefaultLimits
		if c.older {
			limits.PlanesBytes = 0
		}
		p := newTwoProxies(limits)
		if c.perByte > 0 {
			p.requests.sender.perByte = func() (float64, bool) { return c.perByte, true }
		}
		planes := 0
		for step := range int32(100) {
			before := p.requests.encoded
			p.requests.pass(t, data(pslite.DMLC, step, true, true, false, keys, values, nil))
			if p.requests.encoded-before < len(values)-len(values)/8 {
				planes++
			}
		}
		if planes > c.planes || planes < c.planes-2 {
			t.Errorf("%s: %d messages go by planes, want %d", name, planes, c.planes)
		}
	}
}
