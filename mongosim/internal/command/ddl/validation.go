package ddl

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/oplog"
)

func (a *createOptions) checkValidation(r *dispatch.Request) error {
	if level, ok := a.given["validationLevel"]; ok && !oneOf(level, "off", "strict", "moderate") {
		return notInEnum("create.validationLevel", level)
	}
	if action, ok := a.given["validationAction"]; ok && !isAction(r.Server, action) {
		return notInEnum("create.validationAction", action)
	}
	if doc := a.doc("validator"); len(doc) > rawbson.MinSize {
		return checkValidatorOn(r.Server, a.ns, doc)
	}
	return nil
}

// isAction reports whether a value is a validation action.
func isAction(s *dispatch.Server, v bson.RawValue) bool {
	return oneOf(v, "error", "warn") || s.AtLeast(8, 1) && oneOf(v, "errorAndLog")
}

func notInEnum(field string, v bson.RawValue) error {
	text, _ := v.StringValueOK()
	return servererr.New(servererr.BadValue, "Enumeration value '%s' for field '%s' is not a valid value.", text, field)
}

// checkValidatorOn refuses a validator that is invalid or not permitted on the
// collection.
func checkValidatorOn(s *dispatch.Server, ns oplog.Namespace, doc bson.Raw) error {
	switch ns.DB() {
	case "admin", "config", "local":
		return servererr.New(servererr.InvalidOptions,
			"Document validators are not allowed on collection %s in the %s internal database", ns, ns.DB())
	}
	if strings.HasPrefix(ns.Collection(), "system.") {
		return servererr.New(servererr.InvalidOptions, "Document validators not allowed on system collection %s", ns)
	}
	if err := checkValidator(doc); err != nil || !s.AtLeast(6, 1) {
		return err
	}
	return checkClasses(doc)
}

func (a *createOptions) checkImages(r *dispatch.Request) error {
	images := false
	if doc := a.doc("changeStreamPreAndPostImages"); doc != nil {
		var err error
		if images, err = imagesEnabled("create", doc); err != nil {
			return err
		}
	}
	switch {
	case images && a.flag("recordPreImages") && !r.Server.AtLeast(7, 0):
		return servererr.New(servererr.InvalidOptions,
			"'recordPreImages' and 'changeStreamPreAndPostImages.enabled' can not be set to true simultaneously")
	case images && a.has("viewOn"):
		return servererr.New(servererr.InvalidOptions, "option not supported on a view: changeStreamPreAndPostImages")
	}
	return nil
}

// imagesEnabled reads the argument changeStreamPreAndPostImages.
func imagesEnabled(command string, doc bson.Raw) (on bool, err error) {
	name := command + ".changeStreamPreAndPostImages"
	found := false
	it := rawbson.NewIter(doc)
	for it.Next() {
		if !it.Is("enabled") {
			return false, dispatch.UnknownField(name, it.Name())
		}
		if on, found = arg.Flag(it.Raw()); !found {
			return false, dispatch.WrongType(name, "enabled", it.Type, "bool", "long", "int", "decimal", "double")
		}
	}
	if !found {
		return false, dispatch.MissingField(name, "enabled")
	}
	return on, nil
}

func oneOf(v bson.RawValue, words ...string) bool {
	s, ok := v.StringValueOK()
	return ok && slices.Contains(words, s)
}

// checkValidator refuses an invalid validator.
func checkValidator(filter bson.Raw) error {
	_, err := serverquery.CompileValidator(filter, serverquery.Options{})
	return err
}

// codeInvalidRegex refuses an invalid regular expression.
const codeInvalidRegex = servererr.Code(51091)

// checkClasses refuses a validator with a regular expression that PCRE2 does not accept. It looks at no other faults.
func checkClasses(doc bson.Raw) error {
	it := rawbson.NewIter(doc)
	for it.Next() {
		text := ""
		if it.Is("$regex") || it.Is("pattern") {
			text, _ = it.Text()
		}
		if pattern, _, ok := it.Raw().RegexOK(); ok {
			text = pattern
		}
		if badRange(text) {
			return servererr.New(codeInvalidRegex, "Regular expression is invalid: invalid range in character class")
		}
		inner, ok := it.Document()
		if !ok {
			inner, ok = it.Array()
		}
		if ok {
			if err := checkClasses(inner); err != nil {
				return err
			}
		}
	}
	return nil
}
