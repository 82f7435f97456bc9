package relay

import (
	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/sock"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// Stage is a part of one direction's pipeline that decides where messages go: it takes some out of
// the stream, and puts its own in between. In the direction to Far it comes before the codec, in
// the direction to Job after it. It outlives the Conn where the connection goes on over another
// link.
type Stage interface {
	Judge
	Speaker
	// Close is called when the connection has ended, or was abandoned.
	Close()
}

// Judge is the part of a [Stage] that sees the stream. All methods are called by the direction's
// goroutine.
type Judge interface {
	// Command is shown a command of the process that sends, and reports whether it passes. With an
	// error the connection ends, and the command does not pass.
	Command(name string, data []byte) (passes bool, err error)
	// WantsKeys reports whether Inspect needs the keys of a message with this meta.
	WantsKeys(m *pslite.Meta) bool
	// Inspect is shown the beginning of a message, with its keys where WantsKeys asked for them,
	// until it returns something else than Waits: that message, and all behind it, then wait. With
	// an error the connection ends.
	Inspect(m *pslite.Message, d pslite.Dialect) (Taken, error)
	// Take is given the whole of a message for which Inspect has returned Took. The memory of one
	// for the job's process is the stage's to keep; that of one from it is valid during the call.
	Take(m *pslite.Message, d pslite.Dialect) error
	// Silent is called where a message waits and the process sends nothing more.
	Silent()
}

// Speaker is the part of a [Stage] that has messages of its own. They are sent between two others.
type Speaker interface {
	// HasDue reports whether Due would return any.
	HasDue() bool
	// Due returns the messages to be sent now, each whole as ZMTP has them on the wire. Their memory
	// is the caller's.
	Due() [][]byte
	// Sent is called in the direction to Job, for each result of Due, with how many bytes of it
	// were written. That is less than all only after an error. In the direction to Far it is called
	// with 0 and those messages that did not go before the link ended in order.
	Sent(batch [][]byte, n int)
	// End is called at the end of the stream. It returns false where messages are due that go
	// first; once it has returned true there are no more. told means that the process that sends
	// had been sent the end of its own stream, and between that messages can be put in here. It may
	// be called by any goroutine, as may those below.
	End(told, between bool) bool
	// Attach is called when a Conn begins to carry the connection, with the function that has it
	// call Due, and with nil when it no longer does. Any goroutine may call that function.
	Attach(wake func())
	// Receptive is called when the process that receives can be sent messages, since it has sent
	// its READY.
	Receptive()
}

// maxTaken bounds a message that a [Stage] takes, in bytes.
const maxTaken = 256 << 20

// stages returns the connection's stages.
func (c *Conn) stages() (all []Stage) {
	for _, s := range []Stage{c.Outbound, c.Inbound} {
		if s != nil {
			all = append(all, s)
		}
	}
	return all
}

// attach has the stages wake the directions.
func (c *Conn) attach() {
	if c.Outbound != nil {
		c.Outbound.Attach(c.Wake)
	}
	if c.Inbound != nil {
		c.Inbound.Attach(c.wakingJob.wake)
	}
}

// detach undoes attach.
func (c *Conn) detach() {
	for _, s := range c.stages() {
		s.Attach(nil)
	}
}

// Abandon resets the half to the job's process, of a connection that no Run carries.
func (c *Conn) Abandon() {
	sock.Reset(c.Job)
	c.closeStages()
}

func (c *Conn) closeStages() {
	for _, s := range c.stages() {
		s.Close()
	}
}

// EndJob sends the job's process the end of its stream. Any goroutine may call it.
func (c *Conn) EndJob() {
	c.jobTold.Store(true)
	if c.Inbound != nil {
		c.Inbound.End(false, false) // what is queued waits for the next connection
	}
	_ = closeWrite(c.Job) // it ends by itself
}

// staging is what an encoder and a decoder know of the stages of their connection.
type staging struct {
	stage Stage // of this direction; nil: there is none
	// receptive tells the stage of the other direction that the process which sends here takes
	// messages; nil: there is none, or it knows.
	receptive func()
}

// hear shows a command to the stages, and reports whether it passes.
func (s *staging) hear(body []byte) (passes bool, err error) {
	if s.stage == nil && s.receptive == nil {
		return true, nil
	}
	name, data, err := zmtp.ParseCommand(body)
	if err != nil {
		return true, nil
	}
	if s.stage != nil {
		if passes, err := s.stage.Command(string(name), data); !passes || err != nil {
			return false, err
		}
	}
	if string(name) == zmtp.CommandReady {
		s.receives()
	}
	return true, nil
}

// receives notes that the process which sends here takes messages.
func (s *staging) receives() {
	if s.receptive != nil {
		s.receptive()
		s.receptive = nil
	}
}

// giveTo gives the stage a message that was decoded with an error, or without.
func giveTo(s Stage, m *pslite.Message, d pslite.Dialect, err error) error {
	if err != nil {
		return reason.Errorf(reason.MalformedJob, "a message with displaced keys: %w", err)
	}
	if err := s.Take(m, d); err != nil {
		return reason.Errorf(reason.Route, "%w", err)
	}
	return nil
}
