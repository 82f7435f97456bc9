package spare

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

const (
	mostFrame  = 256 << 20
	mostPieces = 1 << 22
	mostText   = 1024
	firstRead  = 256 << 10 // bytes of a frame that are read before there is room for more

	typeRequest = 1
	typeAnswer  = 2
	typeFree    = 3

	flagPush = 1
	flagPull = 2

	lengthSize  = 4
	requestHead = 20
	answerHead  = 24
	freeSize    = 12
)

// Codes of an answer.
const (
	codeDone = iota
	codeFailed
	codeNoRoom
)

var errForm = errors.New("a frame of a spare server's link does not have the form that it should")

// message is a request as it goes over a link.
type message struct {
	push, pull bool
	keep       keep // of one that pulls and does not push
	kind       element.Kind
	number     uint64
	asks       []Ask
	pieces     []Piece
}

// frameSize returns the length of the message's frame, without the length itself.
func (m *message) frameSize() int {
	n := requestHead + 8*len(m.asks) + 8*len(m.pieces)
	if m.push {
		n += 4 * len(m.pieces)
		for i := range m.pieces {
			n += len(m.pieces[i].Value)
		}
	}
	return n
}

// appendHead appends the message's frame, without the values of a push.
func (m *message) appendHead(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(m.frameSize()))
	flags, kind := byte(0), byte(0)
	if m.push {
		flags, kind = flagPush, byte(m.kind)
	}
	if m.pull {
		flags |= flagPull
	}
	b = append(b, typeRequest, flags, kind, byte(m.keep))
	b = binary.LittleEndian.AppendUint64(b, m.number)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(m.asks)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(m.pieces)))
	for _, a := range m.asks {
		b = binary.LittleEndian.AppendUint32(b, uint32(a.Worker))
		b = binary.LittleEndian.AppendUint32(b, uint32(a.Timestamp))
	}
	for i := range m.pieces {
		b = binary.LittleEndian.AppendUint64(b, m.pieces[i].Key)
	}
	if m.push {
		for i := range m.pieces {
			b = binary.LittleEndian.AppendUint32(b, uint32(len(m.pieces[i].Value)))
		}
	}
	return b
}

// head is the beginning of a request's frame.
type head struct {
	push, pull   bool
	keep         keep
	kind         element.Kind
	number       uint64
	asks, pieces int // how many
}

// decodeHead reads the head of a request's frame, which has n bytes in all. If there is no error, it has as many
// bytes as the head says at least.
func decodeHead(b []byte, n int) (h head, err error) {
	if len(b) < requestHead || b[0] != typeRequest || b[1] == 0 || b[1] > flagPush|flagPull {
		return head{}, errForm
	}
	h.push, h.pull, h.kind, h.keep = b[1]&flagPush != 0, b[1]&flagPull != 0, element.Kind(b[2]), keep(b[3])
	if _, ok := KindSize(h.kind); !ok || !h.push && h.kind != 0 || h.keep > keepOrNot || h.push && h.keep != keepNone {
		return head{}, errForm
	}
	h.number = binary.LittleEndian.Uint64(b[4:])
	asks, pieces := binary.LittleEndian.Uint32(b[12:]), binary.LittleEndian.Uint32(b[16:])
	if asks == 0 || asks > MostWorkers || pieces > mostPieces {
		return head{}, errForm
	}
	h.asks, h.pieces = int(asks), int(pieces)
	each := 8
	if h.push {
		each += 4
	}
	if requestHead+8*h.asks+each*h.pieces > n {
		return head{}, errForm
	}
	return h, nil
}

// decodeMessage reads a request's frame, of which it keeps the values.
func decodeMessage(b []byte) (message, error) {
	h, err := decodeHead(b, len(b))
	if err != nil {
		return message{}, err
	}
	m := message{push: h.push, pull: h.pull, keep: h.keep, kind: h.kind, number: h.number, asks: make([]Ask, h.asks), pieces: make([]Piece, h.pieces)}
	b = b[requestHead:]
	for i := range m.asks {
		m.asks[i] = Ask{int32(binary.LittleEndian.Uint32(b)), int32(binary.LittleEndian.Uint32(b[4:]))}
		b = b[8:]
	}
	for i := range m.pieces {
		m.pieces[i].Key = binary.LittleEndian.Uint64(b)
		b = b[8:]
	}
	if m.push {
		lengths := b[:4*h.pieces]
		b = b[4*h.pieces:]
		for i := range m.pieces {
			n := binary.LittleEndian.Uint32(lengths[4*i:])
			if uint64(n) > uint64(len(b)) {
				return message{}, errForm
			}
			m.pieces[i].Value, b = b[:n:n], b[n:]
		}
	}
	if len(b) > 0 {
		return message{}, errForm
	}
	return m, nil
}

// reply is what a server sends: an answer or, first, free bytes alone.
type reply struct {
	isAnswer bool
	number   uint64
	free     int64
	code     byte
	text     string   // unless it is codeDone
	pull     bool     // values follow
	values   [][]byte // nil: it is left out, since the client keeps it
	bytes    int      // of the frame, whose memory values share
}

// failure returns why the server could not do it; nil if it did.
func (r *reply) failure() error {
	switch r.code {
	case codeDone:
		return nil
	case codeNoRoom:
		return &remoteError{r.text, ErrNoRoom}
	}
	return &remoteError{text: r.text}
}

// remoteError is an error of the other side.
type remoteError struct {
	text string
	kind error // nil: no special one
}

func (e *remoteError) Error() string { return "the spare server answered: " + e.text }
func (e *remoteError) Unwrap() error { return e.kind }

// appendFree appends a frame of free bytes.
func appendFree(b []byte, free int64) []byte {
	b = binary.LittleEndian.AppendUint32(b, freeSize)
	b = append(b, typeFree, 0, 0, 0)
	return binary.LittleEndian.AppendUint64(b, uint64(free))
}

// appendAnswerHead appends the head of an answer's frame, which is followed by so many bytes: of
// values with their lengths, or of text.
func appendAnswerHead(b []byte, number uint64, code, values byte, free int64, count, rest int) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(answerHead+rest))
	b = append(b, typeAnswer, code, values, 0)
	b = binary.LittleEndian.AppendUint64(b, number)
	b = binary.LittleEndian.AppendUint64(b, uint64(free))
	return binary.LittleEndian.AppendUint32(b, uint32(count))
}

// appendFailure appends the frame of an answer that says why a request cannot be done.
func appendFailure(b []byte, number uint64, free int64, why error) []byte {
	code := byte(codeFailed)
	if errors.Is(why, ErrNoRoom) {
		code = codeNoRoom
	}
	text := strings.ToValidUTF8(why.Error(), "?")
	text = strings.ToValidUTF8(text[:min(len(text), mostText)], "")
	return append(appendAnswerHead(b, number, code, 0, free, 0, len(text)), text...)
}

// decodeReply reads a server's frame, of which it keeps the values.
func decodeReply(b []byte) (r reply, err error) {
	if len(b) == freeSize && b[0] == typeFree && b[1] == 0 && b[2] == 0 && b[3] == 0 {
		return reply{free: int64(binary.LittleEndian.Uint64(b[4:]))}, nil
	}
	if len(b) < answerHead || b[0] != typeAnswer || b[1] > codeNoRoom || b[2] > 1 || b[3] != 0 {
		return reply{}, errForm
	}
	r = reply{isAnswer: true, bytes: len(b), code: b[1], pull: b[2] == 1, number: binary.LittleEndian.Uint64(b[4:]), free: int64(binary.LittleEndian.Uint64(b[12:]))}
	count := binary.LittleEndian.Uint32(b[20:])
	b = b[answerHead:]
	if !r.pull {
		if count != 0 || len(b) > mostText || r.code == codeDone && len(b) > 0 {
			return reply{}, errForm
		}
		r.text = strings.ToValidUTF8(string(b), "?")
		return r, nil
	}
	if r.code != codeDone || count > mostPieces || 4*int(count) > len(b) {
		return reply{}, errForm
	}
	r.values = make([][]byte, count)
	lengths := b[:4*count]
	b = b[4*count:]
	for i := range r.values {
		n := binary.LittleEndian.Uint32(lengths[4*i:])
		if n == leftOut {
			continue
		}
		if uint64(n) > uint64(len(b)) {
			return reply{}, errForm
		}
		r.values[i], b = b[:n:n], b[n:]
	}
	if len(b) > 0 {
		return reply{}, errForm
	}
	return r, nil
}

// readLength reads the length that a frame begins with.
func readLength(r io.Reader) (int, error) {
	var b [lengthSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return 0, err
	}
	n := binary.LittleEndian.Uint32(b[:])
	if n > mostFrame {
		return 0, fmt.Errorf("%w: it claims %d bytes", errForm, n)
	}
	return int(n), nil
}

// readFrame reads a frame of a server. Its memory doubles as bytes come: a length that is only claimed costs
// nothing.
func readFrame(r io.Reader) ([]byte, error) {
	n, err := readLength(r)
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(n, firstRead))
	for read := 0; ; {
		if _, err := io.ReadFull(r, b[read:]); err != nil {
			return nil, unexpected(err)
		}
		if read = len(b); read == n {
			return b, nil
		}
		more := make([]byte, min(n, 2*read))
		copy(more, b)
		b = more
	}
}

// unexpected returns the error of a read within a frame, where nothing may end.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
