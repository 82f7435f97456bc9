package compact

import (
	"errors"
	"fmt"

	"github.com/psidecar/psidecar/proxy/codec/keylist"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// A Receiver decodes the messages that the [Sender] at the other end of the
// link encoded. It is not safe for use by several goroutines.
type Receiver struct {
	peer     *Peer
	link     uint64
	isDialer bool
	detector pslite.Detector
	meta     pslite.Meta
	metas    metas
	keys     *keylist.Decoder
	lens     *keylist.Decoder
	numbers  uint64 // of requests that the peer retained

	frames   [][]byte
	identity []byte
	metaRoom []byte
	lensRoom []byte
}

// NewReceiver returns the Receiver of what this proxy gets on a link; see
// [Peer.NewSender].
func (p *Peer) NewReceiver(link uint64, isDialer bool) *Receiver {
	return &Receiver{
		peer: p, link: link, isDialer: isDialer,
		keys: keylist.NewDecoder(p.limits.Keys),
		lens: keylist.NewDecoder(p.limits.Lens),
	}
}

// Close tells that the link has ended.
func (r *Receiver) Close() { r.peer.forgetLink(r.link, r.numbers) }

// Message is a decoded message without its values.
type Message struct {
	Frames [][]byte // all frames in order; Frames[Values] is nil
	Values int      // index of the values frame
	Size   uint64   // of the values frame, in bytes
}

// Decode reads the head of an encoded message. The values frame follows it on
// the link. The frames stay valid until the next call. Any error wraps
// [ErrCorrupt] and ends the link.
func (r *Receiver) Decode(head []byte) (Message, error) {
	if len(head) == 0 || head[0]&^allFlags != 0 {
		return Message{}, fmt.Errorf("%w: no flags, or unknown ones", ErrCorrupt)
	}
	flags, src := head[0], head[1:]
	r.frames = r.frames[:0]
	var err error
	if flags&hasIdentity != 0 {
		if src, err = r.readIdentity(src); err != nil {
			return Message{}, err
		}
	}
	if r.metaRoom, src, err = r.metas.read(src, r.metaRoom); err != nil {
		return Message{}, err
	}
	var keys []byte
	if keys, src, err = r.readKeys(flags, src); err != nil {
		return Message{}, err
	}
	r.frames = append(r.frames, r.metaRoom, keys, nil)
	m := Message{Values: len(r.frames) - 1}
	if flags&retained != 0 {
		if err := r.expect(keys); err != nil {
			return Message{}, err
		}
	}
	if flags&hasLens != 0 {
		if r.lensRoom, src, err = readLens(r.lens, src, r.lensRoom); err != nil {
			return Message{}, err
		}
		r.frames = append(r.frames, r.lensRoom)
	}
	if m.Size, src, err = uvarint(src); err != nil {
		return Message{}, err
	}
	if len(src) > 0 {
		return Message{}, fmt.Errorf("%w: %d bytes behind the head", ErrCorrupt, len(src))
	}
	m.Frames = r.frames
	return m, nil
}

func (r *Receiver) readIdentity(src []byte) ([]byte, error) {
	size, src, err := uvarint(src)
	if err != nil {
		return nil, err
	}
	if size > uint64(len(src)) {
		return nil, fmt.Errorf("%w: an identity of %d bytes in %d", ErrCorrupt, size, len(src))
	}
	r.identity = append(r.identity[:0], src[:size]...)
	r.frames = append(r.frames, r.identity)
	return src[size:], nil
}

func (r *Receiver) readKeys(flags byte, src []byte) (keys, rest []byte, err error) {
	if flags&keysOfRequest == 0 {
		keys, rest, err = r.keys.Decode(src)
		if err != nil {
			return nil, nil, errors.Join(ErrCorrupt, err)
		}
		return keys, rest, nil
	}
	var named request
	if named.link, src, err = uvarint(src); err != nil {
		return nil, nil, err
	}
	if named.number, src, err = uvarint(src); err != nil {
		return nil, nil, err
	}
	keys, err = r.peer.take(named)
	return keys, src, err
}

// expect notes that the answer to this request may name it.
func (r *Receiver) expect(keys []byte) error {
	if r.isDialer {
		return fmt.Errorf("%w: a retained request against the direction of the link", ErrCorrupt)
	}
	if _, err := r.detector.Decode(r.metaRoom, &r.meta); err != nil {
		return fmt.Errorf("%w: a retained request: %w", ErrCorrupt, err)
	}
	err := r.peer.expect(request{r.link, r.numbers}, exchangeOf(&r.meta), keys)
	r.numbers++
	return err
}
