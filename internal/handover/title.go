package handover

import "github.com/psidecar/psidecar/internal/policy"

// Title is what the processes of a cgroup and network namespace have their job called, and
// what its owner asks for. Without both, an earlier title of them is withdrawn.
type Title struct {
	Cgroup, Netns uint64
	Job           string // its scheduler's address
	Name          string
	Wishes        policy.Policy
}

// titleOf returns the title in a message.
func titleOf(m Message) Title {
	t := Title{Cgroup: m.Cgroup, Netns: m.Netns, Job: m.Job, Name: m.Name}
	if m.Wishes != nil {
		t.Wishes = *m.Wishes
	}
	return t
}

// Message returns the message with the title.
func (t Title) Message() Message {
	m := Message{Kind: Called, Cgroup: t.Cgroup, Netns: t.Netns, Job: t.Job, Name: t.Name}
	if t.Wishes != (policy.Policy{}) {
		m.Wishes = &t.Wishes
	}
	return m
}

// Titles sets a function that is called with each title, before the listeners of its
// processes are served. It must not block. Call it before Run.
func (c *Client) Titles(called func(Title)) { c.called = called }
