package identity

import "time"

// LookAgain has Current look at the files, however short a time ago it did.
func (i *Identity) LookAgain() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.checked = time.Time{}
}
