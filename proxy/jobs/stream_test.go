package jobs

import (
	"encoding/binary"
	"testing"

	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/reason"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

// greeted records the id of a READY.
type greeted struct {
	sieve
	id int32
}

func (w *greeted) ready(id int32) error { w.id = id; return nil }

// readyOf is the READY command of worker 9, with a property that pads its body.
func readyOf(t *testing.T, size int) []byte {
	t.Helper()
	short := zmtp.AppendReady(nil, "DEALER", []byte("ps9"))
	_, n, err := zmtp.CutHeader(short)
	if err != nil {
		t.Fatal(err)
	}
	name, data, err := zmtp.ParseCommand(short[n:])
	if err != nil {
		t.Fatal(err)
	}
	data = append(data, "\x05X-Pad"...)
	value := size - 1 - len(name) - len(data) - 4
	data = binary.BigEndian.AppendUint32(data, uint32(value))
	return zmtp.AppendCommand(nil, string(name), append(data, make([]byte, value)...))
}

// A command is looked at, up to the size that a link lets pass; a longer one ends
// the connection, as it would there: it might be a READY with an identity, unseen.
func TestLongCommands(t *testing.T) {
	for size, passes := range map[int]bool{
		100: true, zmtp.MaxCommand: true, zmtp.MaxCommand + 1: false, 48 << 10: false, 64 << 10: false, 64<<10 + 1: false, 1 << 20: false,
	} {
		w := &greeted{id: pslite.Empty}
		s := stream{watcher: w, greeted: true}
		b := readyOf(t, size)
		n, passed, need, err := s.next(b)
		switch {
		case passes && (n != len(b) || !passed || err != nil || w.id != pslite.WorkerID(0)):
			t.Errorf("of a command of %d bytes %d pass, %v, %v; the sender is %d", size, n, passed, err, w.id)
		case !passes && (n > 0 || need > 0 || reason.Of(err) != reason.MalformedJob):
			t.Errorf("a command of %d bytes: %d are consumed, %d are waited for, %v", size, n, need, err)
		}
	}
}
