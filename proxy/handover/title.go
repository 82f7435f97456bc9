package handover

import "github.com/psidecar/psidecar/internal/policy"

// A Title is what processes of a cgroup and network namespace have their job called,
// and what its owner asks for. Without both nothing is said there any more.
type Title struct {
	Cgroup, Netns uint64
	Job           string // its scheduler's address
	Name          string
	Wishes        policy.Policy
}

func titleOf(m Message) Title {
	t := Title{Cgroup: m.Cgroup, Netns: m.Netns, Job: m.Job, Name: m.Name}
	if m.Wishes != nil {
		t.Wishes = *m.Wishes
	}
	return t
}

// Message is what tells a proxy of it.
func (t Title) Message() Message {
	m := Message{Kind: Called, Cgroup: t.Cgroup, Netns: t.Netns, Job: t.Job, Name: t.Name}
	if t.Wishes != (policy.Policy{}) {
		m.Wishes = &t.Wishes
	}
	return m
}

// Titles has called called with what jobs are called, before listeners are served at
// which they connect. Call it before Run; called must not wait.
func (c *Client) Titles(called func(Title)) { c.called = called }
