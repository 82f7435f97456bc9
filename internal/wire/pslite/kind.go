package pslite

// Kind is what a message is for, in one word: a label for counters and listings.
type Kind uint8

// The kinds. Answers follow requests in the same order. Control messages have a kind
// for each command, from ControlKind on.
const (
	OtherKind Kind = iota // a data message that neither pushes nor pulls
	Push
	Pull
	PushPull
	App
	OtherAnswer
	PushAnswer
	PullAnswer
	PushPullAnswer
	AppAnswer
	ControlKind // plus the command
)

var kindNames = [...]string{
	"other", "push", "pull", "pushpull", "app",
	"other-answer", "push-answer", "pull-answer", "pushpull-answer", "app-answer",
}

// String returns the kind's name; for control messages, the command's.
func (k Kind) String() string {
	if k < ControlKind {
		return kindNames[k]
	}
	return Command(k - ControlKind).String()
}

// Kind returns the message's kind: for control messages the command's, for others the
// one of its flags. All unknown commands share one kind, so that a peer cannot create
// labels.
func (m *Meta) Kind() Kind {
	if cmd := m.Control.Cmd; cmd != NoCommand {
		if cmd < 0 || int(cmd) >= len(commandNames) {
			cmd = Command(len(commandNames)) // one kind for all unknown ones
		}
		return ControlKind + Kind(cmd)
	}
	// Requests come first and their answers in the same order behind them.
	k := OtherKind
	switch {
	case m.SimpleApp:
		k = App
	case m.Push && m.Pull:
		k = PushPull
	case m.Push:
		k = Push
	case m.Pull:
		k = Pull
	}
	if !m.Request {
		k += OtherAnswer
	}
	return k
}
