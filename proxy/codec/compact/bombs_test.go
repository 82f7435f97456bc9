package compact

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/keylist"
	"github.com/psidecar/psidecar/proxy/relay"
)

const bound = 64 << 20

// evenly is a list of n keys at equal distances, as a link carries it: a byte
// for each 128 keys.
func evenly(form byte, n int) []byte {
	b := binary.AppendUvarint([]byte{form}, uint64(n))
	b = append(b, 0, 1) // first key and stride
	return append(b, make([]byte, (n-1+127)/128)...)
}

// headOf is a head with these keys and no values, and lens where there are any.
func headOf(flags byte, keys, lens []byte) []byte {
	meta := pslite.Meta{Request: true, Pull: true, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
	body := meta.Append(nil, pslite.DMLC)
	b := binary.AppendUvarint([]byte{flags}, uint64(len(body))*2)
	b = append(append(b, body...), keys...)
	return append(b, lens...)
}

// live is what is in use after a collection.
func live() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func total() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// Heads of a few kilobytes that claim lists of many megabytes: what is decoded is
// taken from the bound before it is allocated, and what is over the bound is
// refused.
func TestBombsAreWithinTheBound(t *testing.T) {
	const (
		deltaForm     = 2
		positionsForm = 3
	)
	for _, tc := range []struct {
		name string
		head []byte
	}{
		{"keys, as large as no frame is", headOf(0, evenly(deltaForm, 64<<20), nil)},
		{"keys above the bound", headOf(0, evenly(deltaForm, 11<<20), nil)},
		{"lens above the bound", headOf(hasLens|hasValues, evenly(deltaForm, 2), append([]byte{lensSummed}, evenly(deltaForm, 11<<20)...))},
		{"other keys beside positions", headOf(0, append([]byte{positionsForm, 0}, evenly(deltaForm, 11<<20)[1:]...), nil)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			memory := relay.NewMemory(bound)
			r := NewPeer(DefaultLimits).newReceiver(1, false, memory.Lend(""))
			defer r.Close()
			before := total()
			_, _, err := r.Decode(tc.head)
			if got := total() - before; !errors.Is(err, relay.ErrNoMemory) && !errors.Is(err, ErrCorrupt) || got > 1<<20 {
				t.Errorf("a head of %d bytes allocates %d, error %v; want at most 1 MiB and a refusal", len(tc.head), got, err)
			}
		})
	}
}

// A list within the bound is lent its memory, which goes back when the message
// has been written: a thousand of them take no more than one.
func TestListsGiveTheirMemoryBack(t *testing.T) {
	memory := relay.NewMemory(bound)
	head := headOf(hasLens|hasValues, evenly(2, 1<<20), append([]byte{lensSummed}, evenly(2, 1<<20)...))
	var all []*Receiver
	for range 100 {
		r := NewPeer(DefaultLimits).newReceiver(1, false, memory.Lend(""))
		all = append(all, r)
		frames, _, err := r.Decode(head)
		if err != nil || len(frames) != 4 || len(frames[1]) != 8<<20 || len(frames[3]) != 4<<20 {
			t.Fatalf("%d frames, %v", len(frames), err)
		}
		r.Release()
	}
	if got := live(); got > bound {
		t.Errorf("%d links hold %d bytes after their messages, want at most %d", len(all), got, bound)
	}
	if !memory.TryReserve(bound / 2) {
		t.Error("memory was not given back")
	}
	runtime.KeepAlive(all)
}

// What links remember, in tables and dictionaries that a few bytes fill, is
// counted for all of them together, and given back when they end.
func TestBombsOfStateAreWithinTheBound(t *testing.T) {
	keep := evenly(0x12, 200<<10)  // 1.6 MiB into the table
	learn := evenly(0x22, 500<<10) // 500,000 keys into the dictionary
	for name, list := range map[string][]byte{"table": keep, "dictionary": learn} {
		t.Run(name, func(t *testing.T) {
			memory := relay.NewMemory(bound)
			memory.Patience = time.Millisecond
			before := live()
			var all []*Receiver
			refused, sent := 0, 0
			for range 40 {
				r := NewPeer(DefaultLimits).newReceiver(1, false, memory.Lend(""))
				all = append(all, r)
				for range 8 {
					head := headOf(0, list, nil)
					sent += len(head)
					_, _, err := r.Decode(bytes.Clone(head))
					if err != nil && !errors.Is(err, relay.ErrNoMemory) {
						t.Fatal(err)
					}
					r.Release()
					if err != nil {
						refused++
						break
					}
				}
			}
			if got := live() - before; refused == 0 || got > bound*5/4 {
				t.Errorf("%d links were sent %d bytes and hold %d, %d refused; want at most %d", len(all), sent, got, refused, bound*5/4)
			} else {
				t.Logf("%d links were sent %d bytes and hold %d, %d refused", len(all), sent, got, refused)
			}
			for _, r := range all {
				r.Close()
			}
			if !memory.TryReserve(bound / 2) {
				t.Error("memory was not given back")
			}
		})
	}
}

// Requests that a peer has this proxy remember are counted too; where there is
// no room, their answers do without.
func TestRetainedRequestsAreWithinTheBound(t *testing.T) {
	memory := relay.NewMemory(bound)
	memory.Patience = time.Millisecond
	before := live()
	var peers []*Peer
	for range 16 {
		p := NewPeer(DefaultLimits)
		p.state = keylist.NewAccount(memory.Lend(""))
		peers = append(peers, p)
		r := p.newReceiver(1, false, memory.Lend(""))
		for range 64 {
			if _, _, err := r.Decode(headOf(retained, evenly(2, 100<<10), nil)); err != nil {
				t.Fatal(err)
			}
			r.Release()
		}
	}
	if got := live() - before; got > bound {
		t.Errorf("%d peers hold %d bytes, want at most %d", len(peers), got, bound)
	}
	for _, p := range peers {
		p.close()
	}
	if !memory.TryReserve(bound / 2) {
		t.Error("memory was not given back")
	}
}

// Without memory to remember, a sender and its receiver go on.
func TestSenderWithoutMemory(t *testing.T) {
	memory := relay.NewMemory(bound)
	if !memory.TryReserve(bound / 2) {
		t.Fatal("the memory is not free")
	}
	d := direction{sender: NewPeer(DefaultLimits).newSender(1, true, 1<<20, memory.Lend("")), receiver: NewPeer(DefaultLimits).newReceiver(1, false, memory.Lend(""))}
	keys := make([]uint64, 5000)
	for i := range keys {
		keys[i] = uint64(i) * uint64(i) * 1_000_003
	}
	for i := range int32(5) {
		d.pass(t, data(pslite.DMLC, i, true, false, true, keys, nil, nil))
	}
	if d.messages != 5 {
		t.Errorf("%d messages were encoded, want 5", d.messages)
	}
}
