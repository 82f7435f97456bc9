package compact

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/psidecar/psidecar/proxy/codec/keylist"
)

// Lengths, int32 each, go through keylist as their running sums: these ascend, and their
// differences are the lengths, of which equal ones take next to nothing. Where a length is
// not positive the frame goes as it is. An encoded lens frame is a byte, summed or plain,
// and a list.
const (
	lensPlain byte = iota
	lensSummed
)

const lenSize = 4

// appendLens encodes a lens frame; sums is a buffer of the caller's.
func appendLens(e *keylist.Encoder, dst, lens []byte, sums *[]byte) []byte {
	if !sumLens(lens, sums) {
		return e.Append(append(dst, lensPlain), lens)
	}
	return e.Append(append(dst, lensSummed), *sums)
}

// sumLens fills sums with the running sums of lens, 8 bytes each. It returns false if a
// length is not positive or the frame is not made of lengths.
func sumLens(lens []byte, sums *[]byte) bool {
	if len(lens)%lenSize != 0 {
		return false
	}
	*sums = (*sums)[:0]
	var sum uint64
	for ; len(lens) > 0; lens = lens[lenSize:] {
		n := int32(binary.LittleEndian.Uint32(lens))
		if n <= 0 {
			return false
		}
		sum += uint64(n)
		*sums = binary.LittleEndian.AppendUint64(*sums, sum)
	}
	return true
}

// readLens decodes a lens frame and returns what follows it. The lengths are valid until
// Release.
func (r *Receiver) readLens(src []byte) (lens, rest []byte, err error) {
	if len(src) == 0 {
		return nil, nil, fmt.Errorf("%w: it ends before the lengths", ErrCorrupt)
	}
	form := src[0]
	list, rest, err := r.lens.Decode(src[1:])
	switch {
	case err != nil:
		return nil, nil, errors.Join(ErrCorrupt, err)
	case form == lensPlain:
		return list, rest, nil
	case form != lensSummed || len(list)%8 != 0:
		return nil, nil, fmt.Errorf("%w: lengths of form %d in %d bytes", ErrCorrupt, form, len(list))
	}
	if lens, err = r.lensRoom.Reserve(r.loan, len(list)/8*lenSize); err != nil {
		return nil, nil, err
	}
	// A length is the difference of two sums. Sums that do not ascend give lengths
	// that the job refuses itself.
	var before uint64
	for ; len(list) > 0; list = list[8:] {
		sum := binary.LittleEndian.Uint64(list)
		lens = binary.LittleEndian.AppendUint32(lens, uint32(sum-before))
		before = sum
	}
	return lens, rest, nil
}
