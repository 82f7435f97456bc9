package identity

import "time"

// LookAgain has Current look at the files, however short a time ago it did.
func (i *Identity) LookAgain() { i.checked = time.Time{} }
