// Package spare keeps parts of a job's values on hosts that have no server of the job. A
// [Store] adds what is pushed, as a PS-lite server would. A [Server] offers one store to the
// proxies of all hosts, and a [Client] is a proxy's link to one server. The package knows
// neither jobs nor PS-lite's messages: the caller has keys, values, and connections that are
// authenticated. FORMAT.md describes what goes over them.
//
// # What is guaranteed
//
//   - A push is applied as a whole, together with the record of who asked for it (its asks),
//     or not at all, even if the process is killed meanwhile.
//   - A push that is repeated, by a client whose link broke, or by a worker, is applied once.
//     The store remembers the last [Remembered] pushes of each worker.
//   - The requests of a worker are applied, and answered, in the order of Client.Send, but for pushes of other keys
//     among themselves. So a pull has all that its worker pushed before.
//   - Each request is answered once: after a link broke it goes again, over the next one.
//
// What a store held is lost with the machine, like what a job's server held. The next OpenStore
// says so; it never begins an empty store in place of one that is lost.
//
// # Merging
//
// While requests wait for the link, a client with Merge adds up pushes of several workers for the
// same keys, and lets one pull stand for those of several workers. A worker's request is never
// moved before an earlier one of that worker, unless both push, and for other keys. What was on a link once is sent again as it was:
// the store could not apply a push of which it has applied a part.
//
// # Unchanged values
//
// A pull of one worker after that of another one of the same host mostly finds the values that the host has got. With
// ClientOptions.Memory a client of several workers keeps them, and the server leaves out of an answer what the client
// keeps and no push has changed: see [keep].
package spare

import (
	"errors"
	"fmt"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// ErrNoRoom says that a push does not fit within the store's limit, or on its disk.
var ErrNoRoom = errors.New("the spare server has no room")

// Integers, as kinds of numbers beside those of package element. They are signed or unsigned;
// sums wrap around. Use [KindSize] for their size.
const (
	Int8  element.Kind = 0x81
	Int16 element.Kind = 0x82
	Int32 element.Kind = 0x84
	Int64 element.Kind = 0x88
)

// KindSize returns the bytes of a number; ok is false if the kind is not known.
func KindSize(k element.Kind) (size int, ok bool) {
	switch {
	case k.Valid():
		return k.Size(), true
	case k == Int8 || k == Int16 || k == Int32 || k == Int64:
		return int(k &^ 0x80), true
	}
	return 0, false
}

// addValue adds the numbers of src to those of dst, which has as many bytes, a multiple of the
// kind's size. Package aggregate adds them in the same way.
func addValue(k element.Kind, dst, src []byte) {
	switch size, _ := KindSize(k); {
	case len(dst) == 0:
	case k.Valid():
		vector.SumFloat(k, dst, src)
	default:
		vector.SumInt(size, dst, src)
	}
}

// checkValues returns an error if a value is not made of whole numbers of a kind.
func checkValues(k element.Kind, pieces []Piece) error {
	size, ok := KindSize(k)
	if !ok {
		return fmt.Errorf("the kind of numbers %d is not known", uint8(k))
	}
	for i := range pieces {
		if n := len(pieces[i].Value); n%size != 0 {
			return fmt.Errorf("the value of key %d has %d bytes, not a multiple of %d", pieces[i].Key, n, size)
		}
	}
	return nil
}

// Ask identifies a request: the node id of a worker, and a timestamp that is unique among its
// requests. Timestamps ascend, and may begin again after some 2^28.
type Ask struct{ Worker, Timestamp int32 }

// Piece is a key with its value. A request to pull has keys only.
type Piece struct {
	Key   uint64
	Value []byte
}

// Request is what a client sends. One that pushes and pulls gets the values after the push.
type Request struct {
	Worker, Timestamp int32
	Push, Pull        bool
	Kind              element.Kind // of a push: see also Int8 and so on
	Pieces            []Piece
	// Single makes that the request is not merged with others. It must be set if another process may have
	// sent the request: the store does not apply a sum of which it has a part already. What this process
	// has sent before, by the worker's timestamps, is not merged anyway.
	Single bool
}

func (r *Request) ask() Ask { return Ask{r.Worker, r.Timestamp} }

// Answer ends a request, whose pieces have lost their values.
type Answer struct {
	Request *Request
	// Values are those of a pull, by piece. They must not be changed: requests that were merged
	// share them.
	Values [][]byte
	// Err says why the server could not do it. It wraps ErrNoRoom where that is the reason.
	Err error
}
