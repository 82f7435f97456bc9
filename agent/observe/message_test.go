package observe

import (
	"testing"

	"github.com/psidecar/psidecar/bpf"
)

// A key frame that is shorter than a key has no keys, also where keys are counted before
// the end of their message for want of memory.
func TestKeyFrameShorterThanAKey(t *testing.T) {
	o := New(Options{})
	o.held = heldBytes + 1 // other streams hold so much
	s := &stream{message: message{open: true, data: true, fresh: true, dataSize: 100}}
	o.keysRecord(s, &bpf.Record{Kind: bpf.KindKeys, Length: 4, Data: make([]byte, 4)})
	if s.message.flushed != 0 || s.message.perKey != 0 {
		t.Errorf("%d keys of %d bytes each were counted", s.message.flushed, s.message.perKey)
	}
}

// Lens are held while their message is counted, and at no other time: nothing would free
// them.
func TestLensOutsideOfAMessage(t *testing.T) {
	lens := &bpf.Record{Kind: bpf.KindLens, Data: make([]byte, 400)}
	for name, tc := range map[string]struct {
		message message
		twin    bool
		held    int
	}{
		"no message":           {},
		"of another kind":      {message: message{open: true}},
		"a repetition":         {message: message{open: true, data: true}},
		"counted elsewhere":    {message: message{open: true, data: true, fresh: true}, twin: true},
		"of what is counted":   {message: message{open: true, data: true, fresh: true}, held: 400},
		"end of a message":     {message: message{data: true, fresh: true}},
		"of what has no place": {message: message{open: true, fresh: true}},
	} {
		o := New(Options{})
		s := &stream{message: tc.message, twin: tc.twin}
		o.lensRecord(s, lens)
		if len(s.lens) != tc.held || o.held != tc.held {
			t.Errorf("%s: %d bytes are held, %d of all streams, want %d", name, len(s.lens), o.held, tc.held)
		}
		if o.giveUp(s); o.held != 0 {
			t.Errorf("%s: %d bytes stay held", name, o.held)
		}
	}
}
