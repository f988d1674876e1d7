"""Waiting for a page in a real browser."""


def wait(browser, script, *arguments):
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 120).until(lambda each: each.execute_script(script, *arguments))
