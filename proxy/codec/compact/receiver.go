package compact

import (
	"errors"
	"fmt"

	"github.com/psidecar/psidecar/proxy/codec/keylist"
	"github.com/psidecar/psidecar/proxy/codec/planes"
	"github.com/psidecar/psidecar/proxy/codec/shared"
	"github.com/psidecar/psidecar/proxy/codec/sparsewords"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/relay"
)

// A Receiver decodes the messages that the [Sender] at the other end of the link encoded.
// It is not safe for concurrent use, except for Abort. The frames that it returns lie in
// its own buffers, in the head, or in memory borrowed until Release.
type Receiver struct {
	peer     *Peer
	link     uint64
	isDialer bool
	detector pslite.Detector
	meta     pslite.Meta
	metas    metas
	keys     *keylist.Decoder
	lens     *keylist.Decoder
	values   keylist.WordDecoder
	sparse   sparsewords.Decoder
	planes   planes.Decoder
	loan     *relay.Loan   // of the message in hand
	numbers  uint64        // of requests that the peer retained on this link so far
	inlet    *shared.Inlet // nil: nothing is shared
	named    bool          // the link has named its group
	// The request that the message in hand answers, while its keys are kept for the lane.
	names   bool
	answers request

	frames               [][]byte
	identity             []byte
	metaRoom             []byte
	lensRoom, sparseRoom keylist.Room
	close                func()
}

// newReceiver returns the Receiver of what this proxy gets on a link; see newSender.
func (p *Peer) newReceiver(link uint64, isDialer bool, loan *relay.Loan) *Receiver {
	return &Receiver{
		peer: p, link: link, isDialer: isDialer,
		keys:  keylist.NewDecoder(p.limits.Keys, loan),
		lens:  keylist.NewDecoder(p.limits.Lens, loan),
		loan:  loan,
		close: func() {},
	}
}

// Loan is what the message in hand takes its memory from, for a codec around this one.
func (r *Receiver) Loan() *relay.Loan { return r.loan }

// Close implements [relay.Receiver]: the link has ended.
func (r *Receiver) Close() {
	r.Release()
	r.keys.Close()
	r.lens.Close()
	r.loan.Close()
	if r.inlet != nil {
		r.inlet.Close()
	}
	r.peer.forgetLink(r.link, r.numbers)
	r.close()
}

// Decode implements [relay.Receiver]. Any error ends the link; it wraps [ErrCorrupt], or
// [relay.ErrLinkLost] if values of another link's that the head refers to cannot come any
// more. It may block for memory, and for shared values that are on their way.
func (r *Receiver) Decode(head []byte) (frames [][]byte, plain uint32, err error) {
	r.Release()
	r.loan.Begin(len(head))
	defer r.loan.End()
	// Lengths stand behind values, so that there are none without those.
	if len(head) == 0 || head[0]&(hasLens|hasValues) == hasLens || !validValues(head[0]) {
		return nil, 0, fmt.Errorf("%w: no flags, or unknown ones", ErrCorrupt)
	}
	flags, src := head[0], head[1:]
	r.frames, r.names = r.frames[:0], false
	if flags&hasIdentity != 0 {
		if src, err = r.readIdentity(src); err != nil {
			return nil, 0, err
		}
	}
	if r.metaRoom, src, err = r.metas.readMeta(src, r.metaRoom); err != nil {
		return nil, 0, err
	}
	var keys []byte
	if keys, src, err = r.readKeys(flags, src); err != nil {
		return nil, 0, err
	}
	r.frames = append(r.frames, r.metaRoom, keys)
	// In the order of the sender: it has numbered the request when it wrote this head.
	if flags&retained != 0 {
		if err := r.expect(keys); err != nil {
			return nil, 0, err
		}
	}
	if flags&hasValues != 0 {
		var values []byte
		switch {
		case flags&planeValues == planeValues:
			values, src, err = r.readInto(&r.planes, src, r.peer.limits.PlanesBytes)
		case flags&packedValues != 0:
			values, src, err = r.values.Decode(src)
		case flags&sparseValues != 0:
			values, src, err = r.readInto(&r.sparse, src, r.peer.limits.SparseBytes)
		case flags&sharedValues != 0:
			values, src, err = r.readShared(src)
			if err == nil && r.names {
				_, err = r.peer.takeKeys(r.answers)
			}
		// The relay puts the frame in that follows on the link.
		default:
			plain = 1 << len(r.frames)
		}
		if err != nil && !errors.Is(err, relay.ErrLinkLost) {
			err = errors.Join(ErrCorrupt, err)
		}
		if err != nil {
			return nil, 0, err
		}
		r.frames = append(r.frames, values)
	}
	if flags&hasLens != 0 {
		var lens []byte
		if lens, src, err = r.readLens(src); err != nil {
			return nil, 0, err
		}
		r.frames = append(r.frames, lens)
	}
	if len(src) > 0 {
		return nil, 0, fmt.Errorf("%w: %d bytes behind the head", ErrCorrupt, len(src))
	}
	return r.frames, plain, nil
}

// readIdentity reads an identity frame, which becomes the first of the message.
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

// readKeys reads the keys, or the name of the request that had them. They are valid
// until Release.
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
	// The lane's reader needs the keys of values that go by key.
	if flags&sharedValues != 0 {
		if keys = r.peer.keysOf(named); keys != nil {
			r.names, r.answers = true, named
			return keys, src, nil
		}
	}
	keys, err = r.peer.takeKeys(named)
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
