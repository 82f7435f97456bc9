package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/proxy/relay"
)

// Version is that of the hello, the answer, and everything that follows on a link. A proxy
// refuses other versions; what is optional goes into offers instead.
const Version = 1

// Hello and answer begin with magic (8 bytes), version (1), and the size of the rest (2). All
// numbers are big-endian. Then follow:
//
//	hello    instance (16), link id (8), client, destination, offers
//	answer   instance (16), accepted offers, refused (text), explanation (text)
//	address  size (1: 0, 4 or 16), IP address, port (2)
//	offers   number (1), then for each name (text) and data (size 2, bytes)
//	text     size (2), bytes
//
// The first byte of magic is no letter and no TLS record type, so that other protocols are
// recognized by it.
const (
	magic      = "\xf1psidcar"
	headerSize = len(magic) + 3
	// maxBody bounds the bytes read from a peer that may be no proxy at all.
	maxBody   = 8 << 10
	maxCodecs = 8
	maxName   = 32
	maxText   = 512
)

// Offer is a codec that one side can decode, with its limits, or a capability under a codec's
// name ([Runs] and those of package keep). Unknown offers are ignored, so that versions can
// be mixed.
type Offer struct {
	Codec string
	Data  []byte // see [relay.Codec]
}

// Runs is offered by a proxy that understands the names of runs that go before node tables;
// see package jobs. It has no data.
const Runs = "runs"

// Hello is the first thing that the dialing proxy sends.
type Hello struct {
	Instance    relay.Instance
	ID          uint64 // of this link, unique at its dialer
	Client      netip.AddrPort
	Destination netip.AddrPort // where the job's process wanted to connect
	Offers      []Offer        // at most 8
	// Proven is set by [Acceptor.Accept], and not sent.
	Proven relay.Instance
}

// Answer is the accepting proxy's answer.
type Answer struct {
	Instance relay.Instance
	Accepted []Offer // the offers in use, with this side's own data
	// Proven is set by [Dialer.Dial], and not sent.
	Proven relay.Instance

	// Refused is empty where the link is accepted. Then bytes of the connection follow at
	// once, in both directions.
	Refused reason.Reason
	Text    string // for people: what was refused, and why
}

var errMalformed = errors.New("malformed")

// Append appends the hello's wire form to dst.
func (h *Hello) Append(dst []byte) []byte {
	return appendFramed(dst, func(b []byte) []byte {
		b = append(b, h.Instance[:]...)
		b = binary.BigEndian.AppendUint64(b, h.ID)
		b = appendAddr(b, h.Client)
		b = appendAddr(b, h.Destination)
		return appendOffers(b, h.Offers)
	})
}

// Append appends the answer's wire form to dst. Texts that are too long are cut.
func (a *Answer) Append(dst []byte) []byte {
	return appendFramed(dst, func(b []byte) []byte {
		b = append(b, a.Instance[:]...)
		b = appendOffers(b, a.Accepted)
		b = appendText(b, string(a.Refused), maxName)
		return appendText(b, a.Text, maxText)
	})
}

// appendFramed appends a frame around what body appends.
func appendFramed(dst []byte, body func([]byte) []byte) []byte {
	dst = append(append(dst, magic...), Version, 0, 0)
	start := len(dst)
	dst = body(dst)
	binary.BigEndian.PutUint16(dst[start-2:], uint16(len(dst)-start))
	return dst
}

// appendAddr appends an address; the zero value has size 0.
func appendAddr(dst []byte, a netip.AddrPort) []byte {
	ip := a.Addr().Unmap().AsSlice()
	dst = append(dst, byte(len(ip)))
	dst = append(dst, ip...)
	return binary.BigEndian.AppendUint16(dst, a.Port())
}

func appendOffers(dst []byte, offers []Offer) []byte {
	dst = append(dst, byte(len(offers)))
	for _, o := range offers {
		dst = appendText(dst, o.Codec, maxName)
		dst = binary.BigEndian.AppendUint16(dst, uint16(len(o.Data)))
		dst = append(dst, o.Data...)
	}
	return dst
}

func appendText(dst []byte, s string, most int) []byte {
	s = s[:min(len(s), most)]
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(s)))
	return append(dst, s...)
}

// ReadHello reads a hello, and not a byte more: what follows belongs to the connection. It
// gives up at the first byte that is wrong, so that a foreign client is not waited for. The
// error has a reason.
func ReadHello(r io.Reader) (*Hello, error) {
	body, err := readFramed(r)
	if err != nil {
		return nil, err
	}
	var h Hello
	p := parser{rest: body}
	copy(h.Instance[:], p.takeBytes(len(h.Instance)))
	h.ID = p.uint64()
	h.Client = p.addr()
	h.Destination = p.addr()
	h.Offers = p.offers()
	if p.failed || !h.Destination.IsValid() {
		return nil, reason.Errorf(reason.NotHello, "link: %w hello of %d bytes", errMalformed, len(body))
	}
	return &h, nil
}

// ReadAnswer reads an answer, and not a byte more.
func ReadAnswer(r io.Reader) (*Answer, error) {
	body, err := readFramed(r)
	if err != nil {
		return nil, err
	}
	var a Answer
	p := parser{rest: body}
	copy(a.Instance[:], p.takeBytes(len(a.Instance)))
	a.Accepted = p.offers()
	a.Refused = reason.Reason(p.text(maxName))
	a.Text = string(p.text(maxText))
	if p.failed {
		return nil, reason.Errorf(reason.NotHello, "link: %w answer of %d bytes", errMalformed, len(body))
	}
	return &a, nil
}

// ErrNothing says that a connection was closed before anything came, as a port scan, a health check
// and an agent that looks for proxies do.
var ErrNothing = errors.New("closed before a hello or an answer")

// readFramed reads a frame and returns its body.
func readFramed(r io.Reader) ([]byte, error) {
	var head [headerSize]byte
	// The magic alone first: a peer that sends less and waits is not a proxy.
	switch _, err := io.ReadFull(r, head[:len(magic)]); {
	case err == io.EOF:
		return nil, reason.Errorf(reason.NotHello, "link: %w", ErrNothing)
	case err != nil:
		return nil, readError(err)
	}
	if string(head[:len(magic)]) != magic {
		return nil, reason.Errorf(reason.NotHello, "link: unexpected first bytes %q: the peer is not a proxy", head[:len(magic)])
	}
	if _, err := io.ReadFull(r, head[len(magic):]); err != nil {
		return nil, readError(err)
	}
	if v := head[len(magic)]; v != Version {
		return nil, reason.Errorf(reason.Version, "link: the peer speaks version %d, this is %d", v, Version)
	}
	size := int(binary.BigEndian.Uint16(head[len(magic)+1:]))
	if size > maxBody {
		return nil, reason.Errorf(reason.NotHello, "link: %d bytes announced, at most %d are allowed", size, maxBody)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, readError(err)
	}
	return body, nil
}

// readError gives an error of reading its reason.
func readError(err error) error {
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return reason.Errorf(reason.HelloTimeout, "link: waiting for the peer's hello or answer: %w", err)
	}
	return reason.Errorf(reason.NotHello, "link: reading the peer's hello or answer: %w", err)
}

// parser cuts fields off a body. After the first one that is missing, failed is set and all
// others are empty, so that callers need check only once.
type parser struct {
	rest   []byte
	failed bool
}

func (p *parser) takeBytes(n int) []byte {
	if p.failed || n > len(p.rest) {
		p.failed = true
		return nil
	}
	b := p.rest[:n:n]
	p.rest = p.rest[n:]
	return b
}

func (p *parser) byte() int {
	if b := p.takeBytes(1); b != nil {
		return int(b[0])
	}
	return 0
}

func (p *parser) uint16() int {
	if b := p.takeBytes(2); b != nil {
		return int(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (p *parser) uint64() uint64 {
	if b := p.takeBytes(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (p *parser) text(most int) []byte {
	n := p.uint16()
	p.failed = p.failed || n > most
	return p.takeBytes(n)
}

// addr cuts an address off. A size other than 4 and 16 fails.
func (p *parser) addr() netip.AddrPort {
	n := p.byte()
	if n == 0 {
		p.takeBytes(2)
		return netip.AddrPort{}
	}
	ip, ok := netip.AddrFromSlice(p.takeBytes(n))
	port := p.uint16()
	if !ok || p.failed {
		p.failed = true
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(port))
}

// offers cuts a list of offers off. Their data refers to the body's memory.
func (p *parser) offers() []Offer {
	n := p.byte()
	if n > maxCodecs {
		p.failed = true
	}
	var offers []Offer
	for range n {
		name := p.text(maxName)
		data := p.text(relay.MaxOffer)
		if p.failed {
			return nil
		}
		offers = append(offers, Offer{string(name), data})
	}
	return offers
}

// String describes the hello, for logs.
func (h *Hello) String() string {
	return fmt.Sprintf("link %x/%d from %s to %s", h.Instance[:4], h.ID, h.Client, h.Destination)
}
