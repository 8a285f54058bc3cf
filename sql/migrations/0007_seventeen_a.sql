-- Which versions were made by force is asked at every look at the status. There are few of them among millions of attempts.
CREATE INDEX attempt_forced ON dataflow.attempt (attempt) WHERE forced;
