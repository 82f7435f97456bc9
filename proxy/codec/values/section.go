package values

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/psidecar/psidecar/proxy/relay"
)

// A section is the values of one message: uvarint bytes of the values frame, then parts
// until these are complete. A part is its byte and what FORMAT.md beside this file
// says. A part that came later is written only to proxies whose offer says that they
// read it.
type part byte

const (
	partPlain        part = iota // values as they are
	partSparse                   // package sparse; zeros where nothing came
	partQuantized                // package quantize
	partMixed                    // positions of package sparse, values of package quantize
	partSlim                     // a round of a layer of package slim; zeros where nothing came
	partRecalled                 // package unchanged
	partLearned                  // values as they are, which the receiver remembers as a layer's
	partFilled                   // a round of such a layer; what was before where nothing came
	partByKey                    // a part of an answer, by what its keys last had
	partCopied                   // a part of an answer, by what the worker has: package ef21
	partHalved                   // a part with values of 16 bits, which were float32
	partHalvedSparse             // header of a vector of package sparse, its values in 16 bits; zeros where nothing came
	partRows                     // thresholded activations of keys: which they are, then a sparse part
)

// ErrCorrupt is wrapped by all errors of a [Receiver] that are not compact's.
var ErrCorrupt = errors.New("values: corrupt message")

func appendPlain(dst, values []byte) []byte {
	dst = append(dst, byte(partPlain))
	dst = binary.AppendUvarint(dst, uint64(len(values)))
	return append(dst, values...)
}

// uvarint reads a number that counts bytes, keys or values: none of these exceeds what
// the relay holds.
func uvarint(src []byte) (int, []byte, error) {
	v, n := binary.Uvarint(src)
	if n <= 0 || v > relay.HoldLimit {
		return 0, nil, fmt.Errorf("%w: it ends within a number, or the number is too large", ErrCorrupt)
	}
	return int(v), src[n:], nil
}

// cut splits off the first n bytes of src.
func cut(src []byte, n int) (first, rest []byte, err error) {
	if n > len(src) {
		return nil, nil, fmt.Errorf("%w: %d bytes of values in %d", ErrCorrupt, n, len(src))
	}
	return src[:n], src[n:], nil
}
