package migrate

import (
	"cmp"
	"slices"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// modelServer has PS-lite's resender and a handler that adds pushes.
type modelServer struct {
	Resend  bool
	Sum     [2]float32
	Seen    []uint64
	Unacked []sent
}

// reply is a message of a server for a worker.
type reply struct {
	worker int
	frames [][]byte
}

// take handles a message of a worker, and returns what it answers.
func (s *modelServer) take(at, worker int, frames [][]byte) (replies []reply) {
	m := decode(frames)
	me, them := pslite.ServerID(at), pslite.WorkerID(worker)
	if m.Meta.Control.Cmd == pslite.Ack {
		s.Unacked = slices.DeleteFunc(s.Unacked, func(u sent) bool { return u.Signature == m.Meta.Control.MsgSig })
		return nil
	}
	if s.Resend {
		signature := pslite.Signature(&m.Meta, them, me)
		replies = append(replies, reply{worker, ackFrames(signature)})
		if slices.Contains(s.Seen, signature) {
			return replies
		}
		s.Seen = with(s.Seen, signature, cmp.Compare)
	}
	var back pslite.Meta
	back.Reset()
	back.AppID, back.CustomerID, back.Timestamp = m.Meta.AppID, m.Meta.CustomerID, m.Meta.Timestamp
	back.Push, back.Pull, back.Head = m.Meta.Push, m.Meta.Pull, m.Meta.Head
	answer := [][]byte{nil}
	if values := s.handle(m); values != nil {
		back.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
		answer = append(answer, m.Data[0], pslite.AppendFloat32(nil, values))
	}
	answer[0] = back.Append(nil, pslite.DMLC)
	if s.Resend {
		s.Unacked = with(s.Unacked, sent{pslite.Signature(&back, me, them), answer}, compareSent)
	}
	return append(replies, reply{worker, answer})
}

// handle returns the values that a pull asks for; a push changes them.
func (s *modelServer) handle(m *pslite.Message) (values []float32) {
	for i := range m.Keys().Len() {
		at := slices.Index(modelKeys[:], m.Keys().At(i))
		if m.Meta.Push {
			s.Sum[at] += m.Values().Float32(i)
		}
		if m.Meta.Pull {
			values = append(values, s.Sum[at])
		}
	}
	return values
}

// repeat lets the server's timers run out.
func (s *modelServer) repeat() (replies []reply) {
	for _, u := range s.Unacked {
		worker, _ := ofSignature(u.Signature)
		replies = append(replies, reply{worker, u.Frames})
	}
	return replies
}
