package keep

import "errors"

// PassName stands among the codecs of a link's hello and answer for one that is none:
// the link may end in order between two messages, and its connection go on over
// another. Its data is a [Pass].
const PassName = "pass"

// Pass is what a proxy says of a connection that can be handed over in order, as dialer
// and as acceptor. Its kinds are Begin, Resume and Forget.
type Pass struct {
	Kind    byte
	Session ID
	Ready   []byte // of Resume: body of the READY command of the process at this end
}

// maxPassReady is the longest READY command in a Pass.
const maxPassReady = 512

var errPass = errors.New("malformed offer to hand connections over")

// Append appends it as it stands in a hello. A READY command that is too long is left
// out.
func (p Pass) Append(dst []byte) []byte {
	dst = append(append(dst, p.Kind), p.Session[:]...)
	if len(p.Ready) <= maxPassReady {
		dst = append(dst, p.Ready...)
	}
	return dst
}

// ParsePass undoes Append.
func ParsePass(b []byte) (p Pass, err error) {
	if len(b) < 1+len(p.Session) || b[0] > Forget || len(b) > 1+len(p.Session)+maxPassReady {
		return p, errPass
	}
	p.Kind = b[0]
	copy(p.Session[:], b[1:])
	if ready := b[1+len(p.Session):]; len(ready) > 0 {
		p.Ready = append([]byte(nil), ready...)
	}
	return p, nil
}
