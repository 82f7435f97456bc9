package planner

// Waits reports whether a message waits for memory.
func (i *Intake) Waits() bool {
	if !i.waiting.TryAcquire(waitingBytes) {
		return true
	}
	i.waiting.Release(waitingBytes)
	return false
}
