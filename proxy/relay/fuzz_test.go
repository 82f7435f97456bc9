package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	"github.com/psidecar/psidecar/internal/reason"
)

// pump runs bytes through sides, one after the other, and returns what comes
// out and how each ended.
func pump(b []byte, sides ...side) (out []byte, errs []error) {
	memory := NewMemory(4 << 20)
	errs = make([]error, len(sides))
	src, first := net.Pipe()
	var running sync.WaitGroup
	in := first
	for i, s := range sides {
		there, next := net.Pipe()
		d := &direction{src: in, dst: there, side: s, flow: &Flow{}}
		if dec, ok := s.(*decoder); ok && dec.passing != nil {
			d.passing, d.heardBy = dec.passing, &Conn{Passing: dec.passing, Job: there}
		}
		running.Go(func() {
			errs[i] = d.run(context.Background(), memory)
			d.src.Close()
			d.dst.Close()
		})
		in = next
	}
	running.Go(func() {
		src.Write(b) // fails where a side gives up
		src.Close()
	})
	out, _ = io.ReadAll(in)
	running.Wait()
	return out, errs
}

func newSides(seed uint64) (side, side) {
	codec := &plainCodec{rng: rand.New(rand.NewPCG(seed, 0))}
	return &encoder{sender: codec, flow: &Flow{}}, &decoder{receiver: &plainCodec{}, flow: &Flow{}}
}

// FuzzRoundTrip: whatever a job sends comes out at the far end as it was, up to
// where it is no longer ZMTP.
func FuzzRoundTrip(f *testing.F) {
	for seed := range uint64(3) {
		f.Add(stream(seed, 5)[:3000], seed)
	}
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), uint64(1))
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		up, down := newSides(seed)
		out, errs := pump(b, up, down)
		if !bytes.HasPrefix(b, out) {
			t.Fatalf("%d bytes in, others out", len(b))
		}
		if errs[0] == nil && (errs[1] != nil || len(out) != len(b)) {
			t.Fatalf("%d bytes in, %d out: %v", len(b), len(out), errs)
		}
		if errs[0] != nil && !reason.Has(errs[0]) {
			t.Errorf("no reason: %v", errs[0])
		}
	})
}

// FuzzLink: whatever comes from another proxy, nothing panics and every error
// has its reason.
func FuzzLink(f *testing.F) {
	for seed := range uint64(3) {
		up, _ := newSides(seed)
		b, _ := pump(stream(seed, 5)[:3000], up)
		f.Add(b)
		f.Add(appendCommand(b, flagPass, make([]byte, 4)))
		f.Add(append(appendCommand(b, flagPass, make([]byte, 4)), b...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, passing := range []*Passing{nil, {}} {
			_, down := newSides(0)
			down.(*decoder).passing = passing
			if _, errs := pump(b, down); errs[0] != nil && !reason.Has(errs[0]) && !errors.Is(errs[0], errStands) {
				t.Errorf("no reason: %v", errs[0])
			}
		}
	})
}

// FuzzStages: whatever a job sends, stages see each message once, and what they let pass comes out
// as it was; nothing panics, and every error has its reason.
func FuzzStages(f *testing.F) {
	for seed := range uint64(3) {
		b := greetingAndReady("DEALER")
		for _, m := range numbered(seed, 12) {
			b = append(b, m[:min(len(m), 1000)]...)
		}
		f.Add(b, seed)
		f.Add(stream(seed, 5)[:3000], seed)
	}
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		up := newEncoder(&plainCodec{rng: rand.New(rand.NewPCG(seed, 0))}, &Flow{})
		down := newDecoder(&plainCodec{}, &Flow{})
		outbound, inbound := newSieve(2), newSieve(4)
		up.stage, down.stage = outbound, inbound
		out, errs := pump(b, up, down)
		for i, err := range errs {
			if err != nil && !reason.Has(err) {
				t.Errorf("side %d has no reason: %v", i, err)
			}
		}
		if len(out) > len(b) {
			t.Errorf("%d bytes in, %d out", len(b), len(out))
		}
		if len(outbound.taken)+len(inbound.taken) == 0 && errs[0] == nil && errs[1] == nil && !bytes.Contains(b, []byte("SECRET")) && !bytes.Equal(out, b) {
			t.Errorf("%d bytes in, and others out, although nothing was taken", len(b))
		}
	})
}
