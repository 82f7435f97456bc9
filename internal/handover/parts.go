package handover

// PartKeys sets a function that returns which keys are parts of others, by job, in disjoint ranges. The agent is
// told of those that it does not know yet after each answer to a ping. Call it before Run.
func (c *Client) PartKeys(partKeys func() map[string][]PartRange) { c.partKeys = partKeys }

// mostToldParts bounds what is remembered of an agent; then it is told all again.
const mostToldParts = 1 << 16

// toldPart is a range that an agent has been told.
type toldPart struct {
	job   string
	parts PartRange
}

// tellParts tells the agent of part keys that it does not know.
func (c *Client) tellParts(conn *Conn) error {
	if c.partKeys == nil {
		return nil
	}
	var messages []Message
	all := c.partKeys()
	c.mu.Lock()
	if c.conn == conn && c.toldParts != nil {
		messages = c.newParts(all)
	}
	c.mu.Unlock()
	for _, m := range messages {
		if err := conn.Send(m, nil); err != nil {
			return err
		}
	}
	return nil
}

// newParts returns the messages for what the agent does not know, and notes it; the caller holds c.mu.
func (c *Client) newParts(all map[string][]PartRange) (messages []Message) {
	if len(c.toldParts) > mostToldParts {
		clear(c.toldParts)
	}
	for job, ranges := range all {
		m := Message{Kind: PartKeys, Job: job}
		for _, r := range ranges {
			if told := (toldPart{job, r}); !c.toldParts[told] {
				c.toldParts[told] = true
				m.Parts = append(m.Parts, r)
			}
			if len(m.Parts) == mostParts {
				messages = append(messages, m)
				m.Parts = nil
			}
		}
		if len(m.Parts) > 0 {
			messages = append(messages, m)
		}
	}
	return messages
}
